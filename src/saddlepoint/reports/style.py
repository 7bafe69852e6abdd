"""Colors and layout of the pages.

Tests check that each text color has a contrast of at least 4.5 to 1 on its backgrounds (WCAG 2.2,
level AA).
"""

from __future__ import annotations

from collections.abc import Mapping

Palette = Mapping[str, str]  # colors in hexadecimal, by name

LIGHT: Palette = {
    "background": "#f7f7f5",
    "card": "#ffffff",
    "text": "#1c2024",
    "muted": "#5c6470",
    "line": "#dfe1e4",
    "code": "#f1f2f4",
    "accent": "#24569e",
    "primary": "#3b74c4",
    "secondary": "#f2b48c",
    "track": "#e9ebee",
    "serious": "#a3201c",
    "serious-background": "#fdeceb",
    "warning": "#7a4d00",
    "warning-background": "#fff3d9",
    "note": "#24569e",
    "note-background": "#e9f1fc",
}
DARK: Palette = {
    "background": "#14171b",
    "card": "#1c2026",
    "text": "#e8eaed",
    "muted": "#a2abb8",
    "line": "#333a44",
    "code": "#252a32",
    "accent": "#8ab4f8",
    "primary": "#6ea1ee",
    "secondary": "#a8643a",
    "track": "#2b313a",
    "serious": "#ff9d96",
    "serious-background": "#3a1e1e",
    "warning": "#f4c467",
    "warning-background": "#372c15",
    "note": "#9cc2fb",
    "note-background": "#1c2b42",
}


def _variables(palette: Palette) -> str:
    return "".join(f"--{name}:{color};" for name, color in palette.items())


_RULES = """
*{box-sizing:border-box}
body{margin:0;background:var(--background);color:var(--text);
  font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:60rem;margin:0 auto;padding:1.5rem 1.25rem 4rem}
.brand a{display:inline-block;margin-bottom:.6rem}
.brand{color:var(--muted);font-size:.85rem;letter-spacing:.04em;margin:0}
h1{font-size:1.9rem;line-height:1.2;margin:.15rem 0 .25rem;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:2.6rem 0 .8rem}
main>section:not(.contents~*)>h2,.pair h2{margin:1.2rem 0 .4rem;font-size:1.05rem}
.folded{border-top:1px solid var(--line)}
.folded:has(+:not(.folded)){border-bottom:1px solid var(--line)}
:not(.folded)+.folded{margin-top:2.6rem}
.folded>details{margin:0}
.folded>details>summary{padding:.6rem 0}
.folded h2{display:inline;margin:0 0 0 .2rem;font-size:1.05rem}
.unfolded{scroll-margin-top:3.4rem;padding-bottom:1.2rem}
section{scroll-margin-top:.5rem}
.contents{display:flex;flex-wrap:wrap;gap:.1rem;margin:1.2rem -.6rem 0;font-size:.85rem}
.contents a{padding:.25rem .6rem;border-radius:1rem;text-decoration:none}
@media screen and (min-width:88rem){
  .contents{position:fixed;top:2.5rem;left:calc(50% - 43.5rem);width:12.5rem;
    flex-direction:column;margin:0;border-right:1px solid var(--line);padding-right:.6rem}
}
.contents a:hover{background:var(--note-background)}
a:focus-visible,button:focus-visible,summary:focus-visible,.scroll:focus-visible{
  outline:2px solid var(--accent);outline-offset:2px}
details{margin:.8rem 0}
summary{cursor:pointer;color:var(--accent);font-weight:600;font-size:.92rem;padding:.2rem 0}
details>.card{margin-top:.4rem}
table button{all:unset;cursor:pointer;box-sizing:border-box;font-weight:600}
table button:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
table button::after{content:"↕";opacity:.45;margin-left:.35em;font-weight:400}
[aria-sort=ascending] button::after{content:"↑";opacity:1;color:var(--accent)}
[aria-sort=descending] button::after{content:"↓";opacity:1;color:var(--accent)}
[aria-sort=ascending],[aria-sort=descending]{color:var(--text)}
.leaderboard td small,.leaderboard th small{display:block;color:var(--muted);font-weight:400;
  font-size:.8rem}
.leaderboard td,.leaderboard button{white-space:nowrap}
.leaderboard tbody th{min-width:12rem}
.leaderboard{font-size:.88rem}
.leaderboard th,.leaderboard td{padding:.45rem .5rem}
.leaderboard .words{text-align:left;white-space:normal}
.badge{color:var(--tone);background:var(--tone-background);border-radius:1rem;padding:.1rem .6rem;
  font-size:.82rem;font-weight:600;white-space:nowrap}
main.wide{max-width:76rem}
h3{font-size:.95rem;margin:1.2rem 0 .4rem}
p{margin:.4rem 0;overflow-wrap:anywhere}
.muted{color:var(--muted);font-size:.9rem}
.card{background:var(--card);border:1px solid var(--line);border-radius:.6rem;padding:1.1rem 1.3rem}
.verdict{margin:.9rem 0 0;border-left:.4rem solid var(--tone);background:var(--tone-background);
  border-radius:.6rem;padding:.8rem 1.2rem}
.verdict p{font-size:1.15rem;line-height:1.4;margin:.15rem 0}
.verdict ul{margin:.4rem 0 .1rem;padding-left:1.2rem}
.verdict details{margin:.2rem 0 0}
.verdict summary{font-size:.85rem}
.label{color:var(--tone);font-size:.8rem;font-weight:700;letter-spacing:.06em;
  text-transform:uppercase}
.serious{--tone:var(--serious);--tone-background:var(--serious-background)}
.warning{--tone:var(--warning);--tone-background:var(--warning-background)}
.note{--tone:var(--note);--tone-background:var(--note-background)}
.symptoms{list-style:none;margin:0;padding:0;display:grid;gap:.6rem}
.symptoms li{background:var(--tone-background);border-left:.4rem solid var(--tone);
  border-radius:.4rem;padding:.6rem 1rem}
.symptoms p{margin:.1rem 0 0}
.numbers{display:grid;grid-template-columns:repeat(auto-fit,minmax(12.5rem,1fr));gap:.8rem;
margin-bottom:.8rem}
.numbers .card{padding:.9rem 1.1rem}
.numbers span:first-child{font-size:.9rem}
.numbers b{display:block;font-size:1.5rem;line-height:1.35;font-variant-numeric:tabular-nums;
  white-space:nowrap}
.numbers.four{grid-template-columns:repeat(4,1fr);margin-bottom:0}
.numbers .muted{display:block;line-height:1.4;font-size:.85rem}
.numbers.five{grid-template-columns:repeat(auto-fit,minmax(10.2rem,1fr))}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.92rem;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.4rem .7rem;border-bottom:1px solid var(--line);vertical-align:top}
th:first-child,td:first-child{text-align:left;overflow-wrap:break-word;min-width:7rem}
.words th,.words td{text-align:left;white-space:normal;overflow-wrap:break-word}
.words thead th{white-space:nowrap}
.words th:first-child{min-width:11rem;overflow-wrap:normal}
.words td:nth-child(2):not(:last-child){white-space:nowrap}
thead th{color:var(--muted);font-weight:600;vertical-align:bottom;
  border-bottom:2px solid var(--line)}
tbody tr:last-child>*{border-bottom:0}
tbody th{font-weight:600}
td{white-space:nowrap}
.facts th{color:var(--muted);font-weight:600;width:11rem;white-space:nowrap}
.facts td{text-align:left;overflow-wrap:anywhere;white-space:normal}
svg{display:block;width:100%;max-width:58rem;height:auto;font:13px system-ui,sans-serif}
svg text{fill:var(--text)}
svg .axis{fill:var(--muted);font-size:12px}
svg .grid{stroke:var(--line)}
svg .track{fill:var(--track)}
svg .primary{fill:var(--primary)}
svg .secondary{fill:var(--secondary)}
svg .marker{stroke:var(--text);stroke-width:2.5}
svg .line{stroke:var(--primary);stroke-width:2.5;fill:none;stroke-linejoin:round}
svg .line.secondary{stroke:var(--secondary)}
svg .line.marker{stroke:var(--text);stroke-width:1.6;stroke-dasharray:5 4}
svg .band{fill:var(--primary);opacity:.18}
.matrix .cell,.matrix .matched{fill:var(--primary)}
.matrix .matched{stroke:var(--text);stroke-width:1.6}
.matrix .value{font-size:11.5px;pointer-events:none}
svg .whisker{stroke:var(--text);stroke-width:2;fill:none}
.small-screen{display:none}
@media (min-width:60rem){
  .pair{display:grid;grid-template-columns:1fr 1fr;gap:0 1.2rem}
  .pair .small-screen{display:block}
  .pair .wide-screen{display:none}
}
@media screen and (max-width:60rem){
  .numbers.four .card{padding:.8rem}
  .numbers.four b{font-size:1.15rem}
  .numeric{font-size:.84rem}
  .numeric th,.numeric td{padding:.4rem .35rem}
}
@media screen and (max-width:42rem){
  main{padding:1.4rem 1rem 3rem}
  .verdict{margin-top:.9rem}
  .verdict p{font-size:1.05rem}
  .card{padding:.9rem 1rem}
  .numbers,.numbers.four{grid-template-columns:1fr 1fr;gap:.6rem}
  .numbers .card{padding:.7rem .8rem}
  .numbers b{font-size:1.1rem;white-space:normal}
  .small-screen{display:block}
  .wide-screen{display:none}
  svg:not(.small-screen) text,svg:not(.small-screen) .axis{font-size:23px}
  .words,.numeric,.facts,:is(.words,.numeric,.facts) :is(tbody,tr,th,td){display:block}
  :is(.words,.numeric) thead{display:none}
  :is(.words,.numeric,.facts) tr{border-bottom:1px solid var(--line);padding:.4rem 0}
  :is(.words,.numeric,.facts) tr:last-child{border-bottom:0}
  :is(.words,.numeric,.facts) tbody :is(th,td){border:0;padding:.1rem 0;width:auto;
    white-space:normal;overflow-wrap:break-word}
  .numeric tbody td{display:flex;justify-content:space-between;gap:1rem}
  .numeric td::before{content:attr(data-label);color:var(--muted);text-align:left}
}
.legend{display:flex;gap:.1rem 1.2rem;line-height:1.45;font-size:.85rem;flex-wrap:wrap;
  margin:0 0 .5rem}
.legend span::before{content:"";display:inline-block;width:.8em;height:.8em;border-radius:.2em;
  margin-right:.45em}
.swatch-primary::before{background:var(--primary)}
.swatch-secondary::before{background:var(--secondary)}
.legend .swatch-marker::before{background:var(--text);width:.2em;margin-left:.3em}
.legend .swatch-whisker::before{
  background:linear-gradient(var(--text),var(--text)) center/100% 2px no-repeat;
  border:solid var(--text);border-width:0 2px;border-radius:0}
.legend .swatch-band::before{background:var(--primary);opacity:.3}
.gallery{display:grid;grid-template-columns:repeat(auto-fill,minmax(16rem,1fr));gap:.8rem;
  margin-top:.8rem}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:.6rem;
  padding:.8rem;display:grid;grid-template-columns:repeat(3,1fr);gap:.2rem .6rem}
figure>div{display:flex;flex-direction:column;align-items:center;text-align:center;
  font-size:.9rem;line-height:1.3;min-width:0;overflow-wrap:anywhere}
figure img{width:100%;aspect-ratio:1;object-fit:contain;image-rendering:pixelated;
  border-radius:.25rem;margin-bottom:.3rem}
figure .kind{color:var(--muted);font-size:.75rem}
figure .wrong{color:var(--serious)}
figcaption{grid-column:1/-1;color:var(--muted);font-size:.8rem;overflow-wrap:anywhere}
a{color:var(--accent)}
pre{background:var(--code);border-radius:.5rem;padding:.8rem 1rem;margin:.3rem 0;
  white-space:pre-wrap;overflow-wrap:anywhere;
  font:.85rem/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
footer{margin-top:3rem;border-top:1px solid var(--line);padding-top:.8rem}
@media print{
  body{font-size:10.5pt;background:#fff}
  main{max-width:none;padding:0}
  .card,figure,.symptoms li,tr,svg{break-inside:avoid}
  h2{break-after:avoid}
  .contents{display:none}
  details::details-content{content-visibility:visible;height:auto}
  table button::after{content:none}
  .scroll{overflow:visible}
  .verdict,.symptoms li,svg,.legend span::before{print-color-adjust:exact;
    -webkit-print-color-adjust:exact}
}
"""

# Dark colors are for screens only: paper is white.
CSS = (
    f":root{{color-scheme:light dark;{_variables(LIGHT)}}}"
    f"@media screen and (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}{_RULES}"
)
