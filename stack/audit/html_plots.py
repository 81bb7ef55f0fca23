"""The page's plots and pictures, with the sentences that say what to see in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stack.audit import plots
from stack.audit.exact import Channel
from stack.audit.html_text import esc, plural
from stack.audit.pictures import Strip
from stack.audit.report import AuditReport

TOLERANCE_S = 1e-4  # lerobot's tolerance_s
CLOSE_FRAMES = 0.01
OPEN_CHANNELS = 64


def section(report: AuditReport) -> Iterator[str]:
    drawn = [*_lengths(report), *_clock(report), *_keys(report)]
    if drawn:
        yield "<h2>Episodes, clock and videos</h2>"
        yield from drawn


def _lengths(report: AuditReport) -> Iterator[str]:
    lengths = report.measures.lengths
    if not lengths:
        return
    choices = {decision.episode: decision.choice for decision in report.decisions}
    horizon = report.policy.action_horizon if report.policy else None
    yield "<h3>Episode lengths</h3>"
    yield '<p class="dim">Frames of each episode; <span class="look">to look at</span>, '
    yield '<span class="drop">to leave out</span>.</p>'
    yield plots.episode_lengths(lengths, choices, horizon)


def _clock(report: AuditReport) -> Iterator[str]:
    worst = report.measures.clock_off
    if not worst:
        return
    yield "<h3>Timestamps against frame_index / fps</h3>"
    largest = max(value for _, value in worst)
    if largest <= CLOSE_FRAMES:
        said = f"{largest:.2g} of a frame" if largest else "nothing"
        yield f"<p>Every timestamp of {plural(len(worst), 'episode')} is right to within {said}.</p>"
        return
    yield '<p class="dim">How far they are off at worst, in frames: pictures are looked up by them.</p>'
    yield plots.clock_by_episode(worst, TOLERANCE_S * (report.facts.fps or 30.0))
    if report.measures.clock_curves:
        yield '<p class="dim">Over the frames of the episodes that are off most: a slope is another rate, a '
        yield "step a lost frame, a constant a clock that does not start at 0.</p>"
        yield plots.clock_curves(report.measures.clock_curves)


def _keys(report: AuditReport) -> Iterator[str]:
    if any(report.measures.key_distances.values()):
        yield "<h3>Key-frame distances</h3>"
        yield '<p class="dim">Shares of the pictures by the length of their group, from one key frame to the '
        yield "next: to show one picture, all before it in its group are decoded.</p>"
        yield plots.key_frame_distances(report.measures.key_distances)


def pictures(found: Sequence[Strip], left_out: int) -> Iterator[str]:
    if not found:
        return
    yield "<h2>First and worst places</h2>"
    if left_out:
        yield f'<p class="dim">{plural(left_out, "place")} more are left out to keep the page small '
        yield "and quick to make.</p>"
    yield '<div class="strips">'
    for strip in found:
        fault = strip.fault
        wide = max(248 * len(strip.pictures), 300)
        said = " ".join(part for part in (strip.place.feature, strip.place.channel) if part)
        yield f'<div class="strip" style="width: {wide}px"><p><code class="{fault.severity}">'
        yield f'{esc(fault.code)}</code> <span class="dim">{esc(said)}</span></p><div class="row">'
        for picture in strip.pictures:
            said = f"{picture.camera}, episode {picture.episode}, frame {picture.frame}"
            short = f"episode {picture.episode}, frame {picture.frame}"
            if picture.frame < 0:
                short = said = f"{-picture.frame} before the clip"
            if picture.jpeg is None:
                yield f"<figure><figcaption>{esc(said)}: {esc(picture.why)}</figcaption></figure>"
            else:
                yield f'<figure><img alt="{esc(said)}" title="{esc(said)}" src="{picture.uri}">'
                yield f"<figcaption>{esc(short)}</figcaption></figure>"
        yield "</div></div>"
    yield "</div>"


def channels(report: AuditReport) -> Iterator[str]:
    if not report.policy or not report.channels:
        return
    needs = report.policy
    yield f"<h2>Channels as {esc(needs.name)} sees them</h2>"
    yield '<p class="dim">Normalised: y = 2 (x &minus; q01) / (q99 &minus; q01) &minus; 1, not clipped; the '
    yield "band is [&minus;1, 1], the scale logarithmic. Actions beyond |y| = "
    yield f"{needs.max_magnitude:g} are errors, beyond {needs.warn_magnitude:g} warnings: an action goes "
    yield "into the loss as it is. A state is put into one of 256 bins, and what lies outside the band is "
    source = report.channels[0].source
    said = "the rows" if source == "rows" else source
    yield f"cut off without a message. q01 and q99 are those of {said}.</p>"
    for name in dict.fromkeys(channel.feature for channel in report.channels):
        own = [channel for channel in report.channels if channel.feature == name]
        yield f"<h3>{esc(name)}, {plural(len(own), 'channel')}</h3>"
        yield plots.channel_ranges(own, needs)
    yield from _table(report.channels, needs.warn_magnitude)


def _table(found: Sequence[Channel], limit: float) -> Iterator[str]:
    heads = ("q01", "q99", "min", "max", "largest |y|", "outside &plusmn;1", "loss")
    is_open = " open" if len(found) <= OPEN_CHANNELS else ""
    yield f"<details{is_open}><summary>All {len(found)} channels in figures</summary>"
    yield '<p class="dim">Loss: what the channel alone adds to the mean loss of the worst sample; a healthy '
    yield "training starts at about 1 to 2 in all.</p>"
    yield '<div class="scroll"><table><thead><tr><th>Feature</th><th>Channel</th>'
    yield "".join(f'<th class="num">{head}</th>' for head in heads) + "</tr></thead><tbody>"
    for channel in found:
        yield _row(channel, limit)
    yield "</tbody></table></div></details>"


def _row(channel: Channel, limit: float) -> str:
    loss = "" if channel.chunk_loss is None else f"{channel.chunk_loss:.3g}"
    cells = [f"{v:.4g}" for v in (channel.q01, channel.q99, channel.low, channel.high, channel.largest)]
    cells += [f"{channel.outside_frac:.1%}", loss]
    if channel.is_constant:
        cells[4] = "constant"
    over = ' class="over"' if channel.largest > limit else ""
    numbers = "".join(f'<td class="num">{cell}</td>' for cell in cells)
    return f"<tr{over}><td>{esc(channel.feature)}</td><td>{esc(channel.name)}</td>{numbers}</tr>"
