/* Colours are those of Okabe and Ito (2008), which people with any colour vision tell apart, lighter on a dark ground. */
#include "tools/report/page.h"

/* The shapes of drawings. */
#define SHAPES                                                                                                      \
    "text{font:12px system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif}.h{font-weight:600;font-size:14px}" \
    ".e{text-anchor:end}.m{text-anchor:middle}.note{font-size:10.5px}path{fill:none;stroke-linejoin:round}"         \
    "[class^=l]{stroke-width:1.6}.thin{stroke-width:1.1}.dash{stroke-dasharray:5 "                                  \
    "3}.grid{stroke-width:.7}.axis{stroke-width:1}"                                                                 \
    ".mark{stroke-width:1;stroke-dasharray:2 2}[class^=a]{stroke:none;fill-opacity:.55}.axis{stroke-dasharray:none}"

#define COLOUR(NUMBER, RGB) ".l" #NUMBER "{stroke:" RGB "}.p" #NUMBER ",.a" #NUMBER "{fill:" RGB ";stroke:none}"
#define LIGHT                                                                  \
    COLOUR(0, "#0072b2")                                                       \
    COLOUR(1, "#d55e00")                                                       \
    COLOUR(2, "#009e73")                                                       \
    COLOUR(3, "#aa4499")                                                       \
    COLOUR(4, "#b8860b")                                                       \
    COLOUR(5, "#56b4e9")                                                       \
    COLOUR(6, "#444")                                                          \
    COLOUR(7, "#999")                                                          \
    "text{fill:#222}.unit,.note,.e,.m,.b{fill:#555}"                           \
    ".grid{stroke:#e3e3e3}.axis{stroke:#777}.mark{stroke:#888}.opening{fill:#" \
    "b8860b}.training{fill:#0072b2}"                                           \
    ".lost{fill:#d55e00}.down{fill:#ececec}"
#define DARK                                                                \
    COLOUR(0, "#5ab4f0")                                                    \
    COLOUR(1, "#ff8c42")                                                    \
    COLOUR(2, "#3fd0a4")                                                    \
    COLOUR(3, "#e39bd0")                                                    \
    COLOUR(4, "#e6b93c")                                                    \
    COLOUR(5, "#2f78b8")                                                    \
    COLOUR(6, "#ddd")                                                       \
    COLOUR(7, "#8a8a8a")                                                    \
    "text{fill:#e8e8e8}.unit,.note,.e,.m,.b{fill:#b4b4b4}"                  \
    ".grid{stroke:#333}.axis{stroke:#999}.mark{stroke:#999}.opening{fill:#" \
    "e6b93c}.training{fill:#2f78b8}"                                        \
    ".lost{fill:#ff8c42}.down{fill:#2a2a2a}"

const char pd_style_page[] =
    ":root{color-scheme:light dark}*{box-sizing:border-box}"
    "body{font:14px/1.5 system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;margin:0 "
    "auto;padding:16px;max-width:1640px;"
    "color:#222;background:#fff}h1{font-size:22px;margin:4px 0;overflow-wrap:anywhere}h2{font-size:17px;margin:28px 0 8px}"
    "p{margin:4px "
    "0}.soft{color:#555}.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:10px;margin:14px "
    "0}"
    ".card{border:1px solid #ddd;border-radius:6px;padding:8px 10px}.card b{display:block;font-size:19px;line-height:1.3}"
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,560px),1fr));gap:26px 30px;margin:18px 0}"
    "figure{margin:0;break-inside:avoid}svg{width:100%;height:auto;display:block}.n,.x{display:none}"
    ".scroll{overflow-x:auto;margin:0 0 16px}table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "td{white-space:nowrap}th,td{padding:3px 12px 3px 0;text-align:left;vertical-align:top;border-bottom:1px solid "
    "#e4e4e4}th{font-weight:600}"
    "td.r,th.r{text-align:right}td.w{white-space:normal;min-width:220px;overflow-wrap:anywhere}pre{overflow-x:auto;font-"
    "size:12px}"
    "@media(min-width:1100px){.x{display:block}.v{display:none}}"
    "@media(max-width:620px){.w{display:none}.n{display:block}}" SHAPES LIGHT
    "@media(prefers-color-scheme:dark){body{color:#e8e8e8;background:#161616}.soft{color:#b4b4b4}.card{border-color:#3a3a3a}"
    "th,td{border-color:#333}" DARK "}"
    "@media print{body{color:#000;background:#fff;max-width:none}.charts{grid-template-columns:1fr "
    "1fr}svg.w{display:block}svg.n,svg.x{display:none}" LIGHT "}";
