"""The fourteen questions of the quiz. Of the four answers to each, the first is the right one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer, why it is right or wrong, and which figures of the claim's experiment show it.

    Figures are named as the experiment names them, with * for what depends on the model.
    """

    text: str
    why: str
    shown_by: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question about one claim, and its answers in some order."""

    claim: int
    text: str
    answers: tuple[Answer, ...]


def _question(claim: int, text: str, *answers: tuple[str, str, tuple[str, ...]]) -> Question:
    return Question(
        claim=claim, text=text, answers=tuple(Answer(text=a, why=why, shown_by=shown) for a, why, shown in answers)
    )


PASSES = ("passes for * tokens",)
RENUMBERED = ("change of the scores when ids are renumbered",)
ACROSS = ("largest influence on another position through the feed-forward",)
LOST = ("exponent of the FLOPs: feed-forward",)
SHAPES = ("tensors whose shape depends on the context",)

QUESTIONS = (
    _question(
        1,
        "What does one forward pass add to the text?",
        (
            "One token: the scores of the last position pick it, and the next pass reads it.",
            "As many passes were counted as tokens were written.",
            PASSES,
        ),
        (
            "The whole answer, up to the token that ends it.",
            "Then one pass would have been enough.",
            PASSES,
        ),
        (
            "As many tokens as the prompt has, one from each of its positions.",
            "Every position does give scores, but those of all but the last are for tokens already there.",
            PASSES,
        ),
        (
            "The two or three likeliest tokens, one after the other.",
            "The runner-up is another candidate for the same place. Written after the winner, as in the control, it "
            "makes another text.",
            ("of these tokens, equal to those of the loop that re-runs everything",),
        ),
    ),
    _question(
        2,
        "Ids 700 and 701 are neighbours in the vocabulary. What does a model make of that?",
        (
            "Nothing: an id picks a row, and the rows could lie in any order.",
            "All ids were renumbered and the rows moved along: the scores stayed.",
            RENUMBERED,
        ),
        (
            "It treats the two tokens as close in meaning.",
            "Were it so, other numbers would have given other scores.",
            RENUMBERED,
        ),
        (
            "It multiplies both ids by its first weights, so 701 counts for a little more.",
            "The control does that, and its scores change as soon as the numbering does.",
            RENUMBERED,
        ),
        (
            "Only their one-hot vectors matter, and these hold more than the rows.",
            "A one-hot vector times the table is the row, number by number.",
            ("one-hot times table, less the lookup",),
        ),
    ),
    _question(
        3,
        "'spring' stands at the same position in a text about water and in one about clocks. Where do its two vectors "
        "part?",
        (
            "In the blocks, where attention brings in what stands before it.",
            "The rows are equal; after the blocks the vectors are not; with attention's part set to zero they stay so.",
            ("1 − cosine after the last block",),
        ),
        (
            "In the lookup, because each sense has an id of its own.",
            "The tokenizer sees letters, not senses: it is one id and one row.",
            ("difference of the two rows",),
        ),
        (
            "Where the position is added.",
            "It is the same position in both texts. In the control the positions are still there, and nothing parts.",
            ("1 − cosine after the first block",),
        ),
        (
            "Nowhere, until the model is tuned on texts that explain the word.",
            "Nothing was tuned between the two passes.",
            ("1 − cosine after the last block",),
        ),
    ),
    _question(
        4,
        "Two vectors have the lengths 2 and 5, and a right angle between them. What is their dot product?",
        (
            "0",
            "Lengths times cosine: at 90 degrees nothing is left, whatever the width.",
            ("dot product at 90 degrees",),
        ),
        (
            "10",
            "That is the lengths alone, the control: it is wrong by up to twice their product.",
            ("largest error of the rule, of ‖a‖‖b‖",),
        ),
        (
            "About 5.4",
            "That is the distance of their tips, which grows where a score falls, and ranks keys in another way.",
            ("share of queries whose best key is not the nearest",),
        ),
        (
            "90",
            "That is the angle, which no product of coordinates gives.",
            ("dot product at 90 degrees", "dot product at 180 degrees"),
        ),
    ),
    _question(
        5,
        "Which part of a block lets a position take something from another one?",
        (
            "Attention, and nothing else.",
            "A push crosses through attention; without it, none does.",
            (
                "largest influence on another position through attention",
                "influence on other positions without attention",
            ),
        ),
        (
            "The feed-forward: its hidden layer joins everything.",
            "It joins the coordinates of one position. The control's reads all positions, and there a push crosses.",
            ACROSS,
        ),
        (
            "The residual stream, which runs past all the blocks.",
            "It carries each position by itself: left alone with the feed-forwards, nothing crosses.",
            ("influence on other positions without attention",),
        ),
        (
            "Attention in the first layers, the feed-forward in the last.",
            "The last layer's feed-forward was looked at too.",
            ACROSS,
        ),
    ),
    _question(
        6,
        "One layer gets other numbers in W_V and keeps its W_Q and W_K. What changes in that layer?",
        (
            "What is gathered, but not from where.",
            "The pattern is the same bit for bit, what comes through it is not.",
            ("change of the pattern by another W_V", "change of what is gathered by another W_V"),
        ),
        (
            "The pattern: values say who is heard.",
            "It did not change at all.",
            ("change of the pattern by another W_V",),
        ),
        (
            "Nothing: values are for training, queries and keys for use.",
            "What is gathered did change, in plain use.",
            ("change of what is gathered by another W_V",),
        ),
        (
            "Both, since a token's key and its value are one vector.",
            "So it is in the control alone; in the model another W_K left the values as they were.",
            ("change of the values by another W_K",),
        ),
    ),
    _question(
        7,
        "Why are scores divided by the square root of the head's width before the softmax?",
        (
            "Their spread grows with the width, and a softmax of far-spread scores picks one key and stops learning.",
            "Undivided, a wide head keeps next to none of the entropy.",
            ("entropy of the softmax at d = 4096, of an even choice",),
        ),
        (
            "To bring them between −1 and 1.",
            "Larger ones go in all the same. A cosine would be bounded; a scaled score is not.",
            ("largest score that goes into the softmax", "largest scaled score of the model"),
        ),
        (
            "So that the weights of each query sum to one.",
            "The softmax sees to that, divided or not.",
            ("error of the rows' sums",),
        ),
        (
            "It is a matter of taste: learning goes on the same without it.",
            "At width 4096 little of the gradient is left without it.",
            ("gradient through it at d = *",),
        ),
    ),
    _question(
        8,
        "A model is trained without the mask. What comes of it?",
        (
            "A training loss far too good, and a model that cannot write.",
            "It reads the answer where it stands in the input; when it writes, there is none to read.",
            ("loss of a model trained so, *", "its loss when each byte is told *"),
        ),
        (
            "A worse loss in training, for later words distract it.",
            "The loss fell far below that of the masked twin.",
            ("loss of a model trained so, *",),
        ),
        (
            "A better writer, which has learned from more context.",
            "From what stands before alone it predicts far worse than the masked twin.",
            ("its loss when each byte is told *",),
        ),
        (
            "Much the same, for hardly any weight goes to what comes later.",
            "Without the mask a good share does.",
            ("largest weight above the diagonal",),
        ),
    ),
    _question(
        9,
        "At a width of 512, the 4 heads of a layer become 16. How do its weights change?",
        (
            "They do not: there are more heads, each so much narrower.",
            "3d² for queries, keys and values at every number of heads.",
            ("least of W_Q, W_K and W_V, of 3d²", "most of W_Q, W_K and W_V, of 3d²"),
        ),
        (
            "W_Q, W_K and W_V grow four times.",
            "Only if every head keeps its width, as in the control.",
            ("most of W_Q, W_K and W_V, of 3d²",),
        ),
        (
            "The feed-forward grows, because it has more heads to read.",
            "It reads the stream, and has 8d² each time.",
            ("most of the feed-forward, of 8d²",),
        ),
        (
            "W_O can go: the heads' results only have to be laid side by side.",
            "What W_O makes of a head is nearly all something else than a copy of its result.",
            ("least share of what a head adds that no copy of its result explains",),
        ),
    ),
    _question(
        10,
        "A network has neither mask nor positions. Its input words are shuffled. What comes out?",
        (
            "The same vectors, shuffled alike.",
            "Put back in order they were the old ones, but for rounding.",
            ("change without positions and mask",),
        ),
        (
            "Other vectors: attention reads from left to right by itself.",
            "It takes a set of pairs, and the pairs are the same.",
            ("change without positions and mask",),
        ),
        (
            "Other vectors, just as if the positions were there.",
            "With positions they do change, and much.",
            ("change with positions, without the mask",),
        ),
        (
            "The old vectors in the old places, because residuals remember the order.",
            "The vectors had moved with their words: a residual has no order to remember.",
            ("change without positions and mask",),
        ),
    ),
    _question(
        11,
        "Where are most of the weights of a GPT-2 or GPT-3 block?",
        (
            "In the feed-forward: about two-thirds.",
            "8d² of 12d², at every width.",
            ("share of the feed-forward in a block at d = *",),
        ),
        (
            "In attention: four matrices against two.",
            "Each of the two is four times as large as each of the four.",
            ("share of the feed-forward in a block at d = *",),
        ),
        (
            "In attention and feed-forward alike.",
            "That would be one half; a feed-forward as narrow as the stream, the control, has a third.",
            ("share of the feed-forward in a block at d = 1024",),
        ),
        (
            "In the table of embeddings.",
            "It is in no block, and in GPT-3 the feed-forwards alone are two-thirds of everything.",
            ("GPT-3: share of the feed-forwards in all",),
        ),
    ),
    _question(
        12,
        "A model reads a text of 10 tokens and then one of 1,000. Which of its weights take another shape?",
        (
            "None of them.",
            "Every length went through the same weights.",
            SHAPES,
        ),
        (
            "W_Q and W_K, with a row for every position.",
            "Their sides are the width and the heads; built for 64 times the context they are the same.",
            SHAPES,
        ),
        (
            "The matrix of scores, T by T.",
            "It is no weight: it is computed for each text, and no tensor of the model is so large.",
            ("tensors in all", *SHAPES),
        ),
        (
            "None, but only because each text is padded to the full context.",
            "The passes were as long as the texts.",
            ("lengths that the same weights answered",),
        ),
    ),
    _question(
        13,
        "A text becomes twice as long. Which work becomes four times as much?",
        (
            "Scores and mixing in attention.",
            "Their exponent is 2, that of everything else 1.",
            ("exponent of the FLOPs: scores and mixing",),
        ),
        (
            "That of the feed-forward, the largest part of a block.",
            "It works on one position after another: twice the positions, twice the work.",
            LOST,
        ),
        (
            "The lookup: every token has to be found in the vocabulary.",
            "A row is taken by its number, not searched for.",
            ("exponent of the largest tensor: lookup",),
        ),
        (
            "All of it alike, projections and norms too.",
            "Both grow in step with the text.",
            ("exponent of the FLOPs: projections", "exponent of the largest tensor: norm"),
        ),
    ),
    _question(
        14,
        "An answer is to have 2,000 tokens in place of 200. What becomes ten times as much?",
        (
            "The passes, 2,000 against 200, with the cache or without.",
            "One pass a token on every length that was tried.",
            ("passes a token",),
        ),
        (
            "Nothing much: with the cache only the prompt takes a pass.",
            "The cache saves positions, not passes.",
            ("passes for * tokens", "positions computed for * tokens, cached"),
        ),
        (
            "Not quite ten times: 2,001 passes against 201, as the prompt has one of its own.",
            "The pass that reads the prompt gives the first token.",
            PASSES,
        ),
        (
            "The passes times the layers, since each layer is a pass.",
            "All layers run in each pass.",
            ("layers that run in each pass",),
        ),
    ),
)
