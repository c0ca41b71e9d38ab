"""How the page of a trace looks: light and dark, on a phone, printed."""

CSS = """
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--ink:#1c2128;--soft:#5b6573;--line:#dfe3e8;--code:#f1f3f6;
--model:#3b6fd4;--tool:#1f8f6b;--wait:#c98a0c;--bad:#c8323c;--other:#7a6bb5;--good:#1f8f6b;--gap:#e9ecf0}
@media (prefers-color-scheme:dark){:root{--page:#14171c;--card:#1c2027;--ink:#e4e8ee;--soft:#9aa5b4;--line:#323944;
--code:#242a33;--model:#6d9bf0;--tool:#46bd93;--wait:#e0ab3c;--bad:#f0727a;--other:#a797e0;--good:#46bd93;
--gap:#262c35}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Noto Sans","Noto Sans CJK SC","PingFang SC","Microsoft YaHei",sans-serif}
main{max-width:1080px;margin:0 auto;padding:28px 20px 48px}
h1{font-size:22px;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:16px;margin:30px 0 10px}
h3{font-size:15px;margin:0}
a{color:inherit}
.badge{display:inline-block;padding:1px 9px;border-radius:10px;font-size:12px;font-weight:600;color:#fff;
background:var(--soft);vertical-align:2px;white-space:nowrap}
.badge.good{background:var(--good)}.badge.bad{background:var(--bad)}.badge.wait{background:var(--wait)}
.badge.model{background:var(--model)}
@media (prefers-color-scheme:dark){.badge{color:#14171c}}
.soft{color:var(--soft)}
.facts{display:flex;flex-wrap:wrap;gap:10px;margin:18px 0 0;padding:0}
.facts div{flex:1 1 auto;background:var(--card);border:1px solid var(--line);
border-radius:8px;padding:8px 12px;min-width:0}
.facts dt{font-size:12px;color:var(--soft)}
.facts dd{margin:0;font-weight:600;overflow-wrap:anywhere;font-variant-numeric:tabular-nums}
.note{border-left:3px solid var(--wait);padding:6px 12px;background:var(--card);border-radius:0 8px 8px 0}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 16px;margin:0 0 12px;
min-width:0}
.picture{overflow-x:auto;padding:10px 12px}
.picture svg{display:block;width:100%;min-width:680px;height:auto}
svg text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Noto Sans CJK SC",sans-serif;fill:var(--ink)}
svg .tick text,svg .took{fill:var(--soft);font-size:11px;font-variant-numeric:tabular-nums}
svg .tick line{stroke:var(--line)}
svg .gap{fill:url(#hatch)}
svg #hatch line{stroke:var(--line)}
svg .strong{font-weight:600}
svg rect.row:hover{fill:var(--gap)}svg rect.row{fill:transparent}
svg .step{fill:var(--line)}svg .model{fill:var(--model)}svg .tool{fill:var(--tool)}svg .wait{fill:var(--wait);
opacity:.55}
svg .bad{fill:var(--bad)}svg .other{fill:var(--other)}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;margin:8px 0 0;font-size:12px;color:var(--soft)}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px}
.legend .model{background:var(--model)}.legend .tool{background:var(--tool)}.legend .wait{background:var(--wait);
opacity:.55}
.legend .bad{background:var(--bad)}.legend .other{background:var(--other)}
.head{display:flex;flex-wrap:wrap;gap:2px 12px;align-items:baseline;justify-content:space-between}
.say{white-space:pre-wrap;overflow-wrap:anywhere;margin:8px 0 0;padding:8px 12px;border-left:3px solid var(--model);
background:var(--code);border-radius:0 8px 8px 0}
.say.user{border-color:var(--soft)}.say.runtime{border-color:var(--other)}
.who{font-size:12px;color:var(--soft);margin:12px 0 -4px}
.call{border-top:1px solid var(--line);margin:12px 0 0;padding:12px 0 0;scroll-margin-top:12px}
.name{font-weight:600;overflow-wrap:anywhere}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:4px 0 0;padding:8px 12px;background:var(--code);
border-radius:8px;
font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
details>summary{cursor:pointer;font-size:12px;color:var(--soft);margin:8px 0 0}
ul.parts{list-style:none;margin:8px 0 0;padding:0;font-size:13.5px}
ul.parts li{padding:3px 0 3px 14px;border-left:2px solid var(--line);overflow-wrap:anywhere}
ul.parts li.bad{border-color:var(--bad)}ul.parts li.wait{border-color:var(--wait)}
ul.parts li.good{border-color:var(--good)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th{font-size:12px;color:var(--soft);font-weight:500}
th,td{text-align:right;padding:5px 10px;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left;padding-left:0}
tr:last-child td{font-weight:600;border-bottom:0}
td.share{width:30%;min-width:90px}
td.share i{display:block;height:9px;border-radius:2px;background:var(--model)}
ol.marks{list-style:none;margin:0;padding:0}
ol.marks li{display:grid;grid-template-columns:84px 1fr;gap:10px;padding:4px 0;border-bottom:1px solid var(--line)}
ol.marks li:last-child{border-bottom:0}
ol.marks time{color:var(--soft);text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
ol.marks span{overflow-wrap:anywhere;white-space:pre-wrap}
footer{margin:26px 0 0;font-size:12px;color:var(--soft)}
@media (max-width:600px){main{padding:18px 12px 32px}.card{padding:12px}ol.marks li{grid-template-columns:64px 1fr}}
@media print{:root{--page:#fff;--card:#fff;--ink:#000;--soft:#444;--line:#bbb;--code:#f4f4f4;--model:#3b6fd4;
--tool:#1f8f6b;
--wait:#c98a0c;--bad:#c8323c;--other:#7a6bb5;--good:#1f8f6b;--gap:#eee}
body{font-size:11px}main{max-width:none;padding:0}.picture{overflow:visible}.picture svg{min-width:0}
.card{break-inside:auto}.head,.who,h2,.name{break-after:avoid}.badge{border:1px solid currentColor;color:#000;
background:none}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"""
