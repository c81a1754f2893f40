"""The page in a real browser, over the bundled model: each view does what it says, with the numbers of the pass."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cutaway
from cutaway.claims.quiz import questions, right_letter
from cutaway.inside.attention import HeadAttention, attention
from cutaway.inside.edits import Zero
from cutaway.inside.labels import labels
from cutaway.inside.lens import lens
from cutaway.language_model import LanguageModel
from support.pages import PROMPT, Visit, complaints_of, ready, settled, visiting

expect = pytest.importorskip("playwright.sync_api").expect
Go = Callable[..., Visit]


@pytest.fixture(scope="module")
def bard() -> LanguageModel:
    return cutaway.load("bard")


@pytest.fixture(scope="module")
def address(bard: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    run = tmp_path_factory.mktemp("runs") / "mine"
    run.mkdir()
    records = [{"step": i, "loss": 5 - i / 10} for i in range(1, 21)] + [{"step": 20, "sample": "To be, or not"}]
    (run / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records) + '{"step": 2')
    with visiting(bard, run) as found:
        yield found


@pytest.fixture
def go(browser: Any, address: str) -> Iterator[Go]:
    """Opens a view; whatever the browser complains of fails the test."""
    visits: list[Visit] = []

    def to(place: str = "", **options: Any) -> Visit:
        visits.append(Visit.of(browser, address, place, **options))
        return visits[-1]

    yield to
    assert complaints_of(visits) == []


def chips(page: Any) -> list[str]:
    return page.locator(".chip .label").all_text_contents()


def test_it_is_ready_soon(browser: Any, address: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    began = time.perf_counter()
    page.goto(address)
    ready(page)
    assert time.perf_counter() - began < 5  # 0.4 s on a quiet machine
    assert page.locator("h1").inner_text() == "Write"
    context.close()


def test_tokens_with_their_bytes_and_one_more(go: Go, bard: LanguageModel) -> None:
    page = go(f"#/write?text={PROMPT}&temperature=0").page
    page.wait_for_selector(".chip")
    ids = bard.encode(PROMPT)
    assert chips(page) == labels(bard.tokenizer, ids)
    assert page.locator(".chip .id").all_text_contents() == [str(i) for i in ids]
    assert page.locator(".chip .bytes").first.inner_text() == b"RO".hex(" ")
    expected = bard.generate(PROMPT, temperature=0, max_tokens=5)
    assert isinstance(expected, cutaway.Output)
    for i in range(5):
        page.get_by_role("button", name="Step").click()
        expect(page.locator(".chip")).to_have_count(len(ids) + i + 1)
    assert page.locator(".written").text_content() == PROMPT + expected.text
    page.reload()  # the address has it all
    page.wait_for_selector(".chip.new")
    assert chips(page) == labels(bard.tokenizer, [*ids, *expected.tokens])
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".chip")).to_have_count(len(ids) + 4)


SLOW = """const fetched = window.fetch;
window.fetch = async (...given) => {
  if (String(given[0]).endsWith("/next")) await new Promise((done) => setTimeout(done, 200));
  return fetched(...given);
};"""


def test_steps_faster_than_the_server_are_steps_all_the_same(go: Go, bard: LanguageModel) -> None:
    """Each takes the token that is picked behind the one before, not again the one that is still shown."""
    page = go().page
    page.add_init_script(SLOW)
    page.goto(f"{page.url.split('#')[0]}?slow#/write?text=ROMEO&temperature=0")
    expect(page.locator(".candidate").first).to_be_visible()
    for _ in range(3):
        page.get_by_role("button", name="Step").click()
    expected = bard.generate("ROMEO", temperature=0, max_tokens=3)
    assert isinstance(expected, cutaway.Output)
    expect(page.locator(".chip .label")).to_have_text(labels(bard.tokenizer, [*bard.encode("ROMEO"), *expected.tokens]))


def test_another_token_is_a_branch_and_back_leads_back(go: Go) -> None:
    page = go(f"#/write?text={PROMPT}&temperature=0").page
    page.wait_for_selector(".candidate")
    before = chips(page)
    second = page.locator(".candidate .label").nth(1).inner_text()
    page.locator(".candidate").nth(1).click()
    page.wait_for_selector(".chip.new")
    assert chips(page) == [*before, second]
    page.go_back()
    page.wait_for_selector(".chip.new", state="detached")
    assert chips(page) == before
    page.locator(".chip").nth(1).click()  # and any token is a place to cut at
    expect(page.locator(".chip")).to_have_count(2)


def test_what_each_filter_removes_is_told(go: Go, bard: LanguageModel) -> None:
    page = go(f"#/write?text={PROMPT}&top_k=3&min_p=1").page
    page.wait_for_selector(".removed li")
    first, second = page.locator(".removed li").all_text_contents()
    assert first.replace("\u202f", "").startswith(f"top-k removed {bard.config.d_vocab - 3} tokens")
    assert second.startswith("min-p removed 2 tokens")
    fates = page.locator(".candidate .fate").all_text_contents()
    assert fates[1:3] == ["removed by min-p"] * 2 and set(fates[3:]) == {"removed by top-k"}
    share = float(bard.logits(PROMPT)[-1].double().softmax(-1).max())  # type: ignore[union-attr]
    assert f"{share * 100:.2g}"[:3] in page.locator(".candidate").first.get_attribute("aria-label")


def test_play_goes_on_until_it_is_paused(go: Go) -> None:
    page = go(f"#/write?text={PROMPT}").page
    page.wait_for_selector(".chip")
    page.get_by_label("Pace").select_option("0")
    page.get_by_role("button", name="Play").click()
    page.locator(".chip.new").nth(3).wait_for()
    page.get_by_role("button", name="Pause").click()
    page.wait_for_timeout(300)
    n = page.locator(".chip.new").count()
    page.wait_for_timeout(300)
    assert page.locator(".chip.new").count() == n


def test_a_head_opens_through_its_stages(go: Go, bard: LanguageModel) -> None:
    page = go(f"#/tower?text={PROMPT}").page
    page.get_by_role("button", name="layer 1, head 2").click()
    page.wait_for_selector("[role=tab][aria-selected=true]")
    assert page.locator("[role=tab]").all_text_contents() == ["q · k", "÷ √d", "mask", "softmax", "× v", "W_O"]
    found = attention(bard, PROMPT, head="1.2")
    assert isinstance(found, HeadAttention)
    page.locator(".stage .view").focus()
    page.keyboard.press("Control+End")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Home")
    row = len(found.tokens) - 2
    words = page.locator(".stage .reading").inner_text()
    assert words.startswith(f"query ‘{found.labels[row]}’({row}), key ‘{found.labels[0]}’(0): ")
    assert float(words.rpartition(" ")[2]) == pytest.approx(found.pattern[row, 0], rel=0.01)
    page.get_by_role("tab", name="softmax").focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(".stage h3:has-text('mask')")
    page.get_by_text("Follow one cell").click()
    table = page.locator(".follow table").first
    assert f"{found.scores[-1, -2]:.2f}".rstrip("0")[:5] in table.inner_text().replace("−", "-")
    page.go_back()
    page.wait_for_selector("h2:has-text('The residual stream')")


def test_the_lens_says_what_the_model_says(go: Go, bard: LanguageModel) -> None:
    page = go(f"#/lens?text={PROMPT}").page
    page.wait_for_selector(".answered .heatmap .view")
    found = lens(bard, PROMPT)
    page.locator(".heatmap .view").first.focus()
    page.keyboard.press("Control+End")
    words = page.locator(".heatmap .reading").first.inner_text()
    winner = found.words[int(found.top[-1, -1, 0])]
    assert f"‘{winner}’" in words and f"after {found.rows[-1]}" in words


def test_an_experiment_against_the_model_as_it_is(go: Go, bard: LanguageModel) -> None:
    page = go(f"#/experiment?text={PROMPT}").page
    page.get_by_role("button", name="layer 0, feed-forward off").click()
    page.get_by_label("New tokens, greedily").fill("6")
    page.get_by_role("button", name="Run").click()
    page.wait_for_selector(".answered")
    plain = bard.generate(PROMPT, temperature=0, max_tokens=6)
    changed = bard.generate(PROMPT, temperature=0, max_tokens=6, edits=[Zero("blocks.0.ff.out")])
    texts = page.locator(".prose .body").all_text_contents()
    assert texts[:2] == [plain.text, changed.text]  # type: ignore[union-attr]
    assert page.locator(".answered h2").inner_text() == "With feed-forward 0 at zero"
    assert "ff=0" in page.url
    page.get_by_label("Drop the mask").check()
    page.get_by_role("button", name="Run").click()
    page.wait_for_selector("h2:has-text('no mask')")


def test_what_both_models_write_stands_side_by_side(go: Go) -> None:
    page = go(f"#/experiment?text={PROMPT}&heads=0.0&n_new=2&run=1").page
    page.wait_for_selector(".answered .prose")
    one, other = (page.locator(".answered .prose").nth(i).bounding_box() for i in range(2))
    assert one["y"] == other["y"] and one["x"] < other["x"]


def test_a_claim_is_tested_here_and_now(go: Go) -> None:
    page = go("#/claims").page
    page.wait_for_selector(".card")
    assert page.locator(".card").count() == 14
    page.get_by_role("button", name="Test claim 3:").click()
    page.wait_for_selector(".verdict.good")
    assert page.locator("#claim-3 .figure").count() >= 2
    page.wait_for_selector("[role=status] >> text=1 of 1 tested hold")


def test_the_quiz_is_marked_by_the_experiment(go: Go) -> None:
    page = go("#/quiz?seed=5").page
    page.wait_for_selector(".quiz [type=radio]")
    asked = {one.text: one for one in questions(5)}[page.locator(".quiz h2").inner_text()]
    right = right_letter(asked)
    wrong = next(letter for letter in "abcd" if letter != right)
    assert page.locator(".quiz label").count() == 4
    page.locator(f".quiz [value={wrong}]").check()
    page.get_by_role("button", name="Answer").click()
    page.wait_for_selector(".verdict.bad")
    assert page.locator(f".quiz .right [value={right}]").count() == 1
    assert page.locator(".quiz").count() == 1  # its answer is drawn as any other
    page.get_by_role("button", name="Next question").click()
    page.wait_for_selector("text=Question 2 of 14")
    assert "0 right so far" in page.locator(".quiz").inner_text()


def test_a_run_is_shown_as_it_stands(go: Go) -> None:
    page = go("#/training").page
    page.wait_for_selector(".answered")
    assert page.locator(".answered h2").inner_text() == "The run mine at step 20"
    assert "To be, or not" in page.locator(".answered").inner_text()


QUESTIONS = ["look", "contributions", "neighbours", "senses", "effects", "compare", "exact", "cost"]


@pytest.mark.parametrize("view", QUESTIONS)
def test_every_question_has_an_answer(go: Go, view: str) -> None:
    page = go(f"#/{view}?run=1").page
    page.wait_for_selector(".answered .figure")
    settled(page)
    assert page.locator("[role=alert]").all_inner_texts() == [""]


def test_what_is_wrong_is_told_in_one_line(go: Go) -> None:
    visit = go(f"#/lens?text={PROMPT}&target=zzz+qqq")
    visit.page.wait_for_selector("[role=alert]:not(:empty)")
    assert "is no token" in visit.page.locator("[role=alert]").inner_text()
    visit.page.get_by_label("Token to follow").fill("")
    visit.page.get_by_role("button", name="Ask").click()
    visit.page.wait_for_selector(".answered .figure")
    assert visit.page.locator("[role=alert]").inner_text() == ""


def test_a_long_question_can_be_cancelled(go: Go) -> None:
    page = go(f"#/experiment?text={PROMPT}&ff=1&n_new=200").page
    page.get_by_role("button", name="Run").click()
    page.wait_for_selector(".status :text-matches('of 400 tokens')")
    page.get_by_role("button", name="Cancel").click()
    page.wait_for_timeout(400)
    assert page.locator(".status").inner_text() == "Cancelled: this is what was found until then."
    assert page.locator(".answered").count() == 0
    assert page.locator(".so-far h2").inner_text() == "With feed-forward 1 at zero"  # what was found stays


def test_back_from_a_long_question_ends_it(go: Go) -> None:
    page = go(f"#/experiment?text={PROMPT}&ff=1&n_new=200").page
    page.get_by_role("button", name="Run").click()
    page.wait_for_selector(".so-far")
    page.go_back()
    page.wait_for_function("!location.hash.includes('run=1')")
    page.wait_for_timeout(400)
    assert page.locator(".status").inner_text() == page.locator(".place .answer").inner_text() == ""


def test_an_answer_is_saved_as_one_file(go: Go, tmp_path: Path) -> None:
    page = go(f"#/tower?text={PROMPT}&part=0.1").page
    page.wait_for_selector(".panel .saver button")
    with page.expect_download() as download:
        page.locator(".panel .saver button").click()
    path = tmp_path / "saved.html"
    download.value.save_as(path)
    text = path.read_text(encoding="utf-8")
    assert re.search("<title>Attention of head 0.1", text) and "http://" not in text.replace("http://www.w3.org", "")
    other = page.context.new_page()
    other.goto(path.as_uri())
    other.wait_for_selector(".heatmap .reading")
    assert other.locator("h1").inner_text().startswith("Attention of head 0.1")
