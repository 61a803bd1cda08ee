"""The report's style sheet and its one small script: light and dark, no external resources."""

STYLE = """
:root{--bg:#fbfbfd;--card:#fff;--ink:#1c2030;--muted:#6b7285;--line:#e4e7ef;--good:#1a7f4b;--bad:#c4314b;
--warn:#a86800;
--a:#3b6fd4;--b:#e0772b;--l1:#fdf0d9;--l2:#fbe0b4;--l3:#f9cb8d;--l4:#f6b068;--l5:#ef9150;--l6:#e26d41;--l7:#ce4738;
--l8:#ad2434;--none:repeating-linear-gradient(45deg,#eceef4,#eceef4 3px,#f8f9fc 3px,#f8f9fc 6px)}
@media (prefers-color-scheme:dark){:root{--bg:#14161d;--card:#1c1f29;--ink:#e7e9f0;--muted:#949bb0;--line:#2c3040;
--good:#4cc38a;--bad:#ff6b81;--warn:#f0b34a;--a:#7ea6ff;--b:#ffa45e;--l1:#3a3024;--l2:#533c22;--l3:#6f4a22;
--l4:#8d5825;--l5:#aa6129;--l6:#c5612f;--l7:#dd5a3b;--l8:#f4525a;
--none:repeating-linear-gradient(45deg,#222634,#222634 3px,#191c26 3px,#191c26 6px)}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);
font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1120px;margin:0 auto;padding:32px 24px 80px}
header h1{font-size:26px;margin:0 0 4px;letter-spacing:-.01em}
h2{font-size:18px;margin:40px 0 12px}h3{font-size:15px;margin:0 0 8px;font-weight:600}
code,.mono,.t{font-family:ui-monospace,"SF Mono",Menlo,Consolas,monospace;font-size:.9em}
.muted{color:var(--muted);font-weight:400}.path{overflow-wrap:anywhere}
.card{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:18px 20px;margin:12px 0}
.verdict{display:inline-block;padding:3px 12px;border-radius:999px;font-weight:600;font-size:14px;color:#fff}
.verdict.equal{background:var(--good)}.verdict.different{background:var(--bad)}
.verdict.incomplete,.verdict.drift{background:var(--warn)}
@media (prefers-color-scheme:dark){.verdict{color:#14161d}}
.first{border-left:4px solid var(--bad)}.first .where{font-size:17px;font-weight:600;margin-bottom:6px}
.facts{display:flex;flex-wrap:wrap;gap:8px 26px;margin:8px 0 0}.facts div{min-width:70px}
.facts dt,.facts span:first-child{display:block;color:var(--muted);font-size:12px}
.ab{display:grid;grid-template-columns:1fr 1fr;gap:12px;margin-top:14px}
.ab>div{border:1px solid var(--line);border-radius:8px;padding:8px 12px;overflow-wrap:anywhere}
.ab .a{border-top:3px solid var(--a)}.ab .b{border-top:3px solid var(--b)}.key-a{color:var(--a)}.key-b{color:var(--b)}
.flow{display:flex;flex-wrap:wrap;gap:6px;align-items:stretch;margin:14px 0 4px}
.flow a{flex:1 1 128px;max-width:180px;text-decoration:none;color:inherit;border:1px solid var(--line);
border-radius:10px;padding:8px 10px;
background:var(--card);font-size:13px}
.flow a b{display:block;font-size:12.5px;white-space:nowrap}.flow .equal b::before{content:"✓ ";color:var(--good)}
.flow .drift b::before{content:"~ ";color:var(--warn)}
.flow .different{border-color:var(--bad)}.flow .different b::before{content:"✗ ";color:var(--bad)}
.flow .config.different{border-color:var(--warn)}.flow .config.different b::before{content:"≠ ";color:var(--warn)}
.flow .absent{opacity:.4}.flow .is-first{box-shadow:0 0 0 2px var(--bad)}
table{border-collapse:collapse;width:100%;table-layout:auto}.list th,.list td{text-align:left;padding:6px 10px;
border-bottom:1px solid var(--line)}
.list th{font-size:12px;color:var(--muted);font-weight:500}.list td.n,.list th.n{text-align:right;
font-variant-numeric:tabular-nums}
.list tr.different td:first-child{box-shadow:inset 3px 0 var(--bad)}.scroll{overflow-x:auto}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(340px,1fr));gap:14px}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:12px;padding:14px 16px}
figcaption{margin-bottom:8px}svg{width:100%;height:auto;display:block}
svg text{fill:var(--muted);font-size:11px}.axis{stroke:var(--line)}.bar{fill:var(--l6)}.bar:hover{fill:var(--l8)}
.side-a{fill:var(--a);opacity:.55}.side-b{fill:var(--b);opacity:.5}
.heat table{width:auto;border-spacing:2px;border-collapse:separate}
.heat th{font-size:10.5px;color:var(--muted);font-weight:400;padding:0 4px;white-space:nowrap}
.heat td{width:26px;min-width:26px;height:20px;border-radius:4px;background:var(--line)}
.l1{background:var(--l1)!important}.l2{background:var(--l2)!important}.l3{background:var(--l3)!important}
.l4{background:var(--l4)!important}.l5{background:var(--l5)!important}.l6{background:var(--l6)!important}
.l7{background:var(--l7)!important;color:#fff}.l8{background:var(--l8)!important;color:#fff}
.heat td.none{background:var(--none)}
.strip{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:14px 16px;margin:12px 0}
.tokens{line-height:2.1;max-height:260px;overflow:auto}
.t{display:inline-block;padding:0 4px;margin:0 1px 2px 0;border-radius:4px;line-height:1.7;white-space:pre;
background:var(--bg);
border:1px solid var(--line);cursor:default}.t.prompt{opacity:.5;border-style:dashed}
.t.worst{outline:2px solid var(--ink)}
.t del{color:inherit;opacity:.7;margin-right:4px}.t ins{text-decoration:none;font-weight:700}
#tip{position:fixed;display:none;pointer-events:none;white-space:pre;background:var(--ink);color:var(--bg);
border-radius:8px;
padding:8px 11px;font:12.5px/1.5 ui-monospace,Menlo,Consolas,monospace;max-width:90vw;z-index:9;
box-shadow:0 6px 24px #0004}
.meter{display:inline-block;width:120px;height:8px;border-radius:4px;background:var(--line);vertical-align:middle;
overflow:hidden}
.meter span{display:block;height:100%;background:var(--good)}
.why{display:grid;gap:10px}.why .card{margin:0}.why .near{border-style:dashed;color:var(--muted)}
.legend{display:flex;gap:3px;align-items:center;font-size:12px;
color:var(--muted)}
.legend i{width:20px;height:10px;border-radius:3px;background:var(--line)}
details summary{cursor:pointer}.findings details{background:var(--card);border:1px solid var(--line);
border-radius:10px;
padding:10px 14px;margin:8px 0}.findings b.error{color:var(--bad)}.findings b.warning{color:var(--warn)}
nav{display:flex;gap:16px;flex-wrap:wrap;margin:10px 0 0}nav a{color:var(--a)}
@media (max-width:640px){main{padding:20px 14px 60px}.ab{grid-template-columns:1fr}.grid{grid-template-columns:1fr}}
@media print{body{background:#fff}.tokens{max-height:none}}
"""

SCRIPT = """
const tip=document.getElementById('tip');
document.querySelectorAll('[title]').forEach(e=>{e.dataset.tip=e.title;e.removeAttribute('title')});
document.addEventListener('mousemove',e=>{const t=e.target.closest&&e.target.closest('[data-tip]');
if(!t){tip.style.display='none';return}
tip.textContent=t.dataset.tip;tip.style.display='block';
tip.style.left=Math.max(4,Math.min(e.clientX+14,innerWidth-tip.offsetWidth-8))+'px';
tip.style.top=(e.clientY+18+tip.offsetHeight>innerHeight?e.clientY-tip.offsetHeight-12:e.clientY+18)+'px'});
document.querySelectorAll('.t.worst').forEach(e=>{const b=e.parentElement;
b.scrollTop=Math.max(0,e.offsetTop-b.offsetTop-60)});
"""
