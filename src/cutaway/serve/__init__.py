"""One model for programs and people: an OpenAI-compatible API, the inside as JSON, and the page, over one scheduler."""
