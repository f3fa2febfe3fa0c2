// SPDX-License-Identifier: Apache-2.0
// html.c - the frame of the page: escaping, numbers as people read them, style and script. Nothing is loaded from elsewhere.
#include "report/internal.h"

static const char *entity(unsigned char c)
{
    switch (c) {
    case '&':
        return "&amp;";
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '"':
        return "&quot;";
    case '\'':
        return "&#39;";
    default:
        return c < 0x20 || c == 0x7f ? "&#65533;" : NULL;
    }
}

// Length of a well-formed UTF-8 sequence; 0: it is none.
static size_t sequence(const unsigned char *s)
{
    size_t n = 0;
    if (s[0] < 0x80)
        n = 1;
    else if (s[0] >= 0xc2 && s[0] <= 0xdf)
        n = 2;
    else if ((s[0] & 0xf0) == 0xe0)
        n = 3;
    else if (s[0] >= 0xf0 && s[0] <= 0xf4)
        n = 4;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    return n;
}

void tsr__html_text(struct text *text, const char *s)
{
    while (*s) {
        const char *safe = entity((unsigned char)*s);
        size_t n = safe ? 1 : sequence((const unsigned char *)s);
        if (safe || !n)
            tsr__text_add(text, str_of(safe ? safe : "&#65533;"));
        else
            tsr__text_add(text, (struct str){s, n});
        s += n ? n : 1;
    }
}

void tsr__html_bytes(struct text *text, int64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double v = (double)bytes;
    size_t u = 0;
    while (v >= 1024 && u + 1 < TSR_COUNT(units)) {
        v /= 1024;
        u++;
    }
    tsr__text_printf(text, u == 0 || v >= 100 ? "%.0f %s" : "%.1f %s", v, units[u]);
}

void tsr__html_time(struct text *text, double seconds)
{
    if (seconds >= 1)
        tsr__text_printf(text, "%.3g s", seconds);
    else if (seconds >= 1e-3)
        tsr__text_printf(text, "%.4g ms", seconds * 1e3);
    else
        tsr__text_printf(text, "%.3g &micro;s", seconds * 1e6);
}

const char *tsr__html_kind(tsr_span_kind kind)
{
    static const char *const names[] = {"work", "talk", "wait"};
    return names[kind];
}

const char *tsr__html_kind_words(tsr_span_kind kind)
{
    static const char *const names[] = {"computing", "communicating", "waiting for others"};
    return names[kind];
}

void tsr__html_legend(struct text *text, bool idle)
{
    tsr__text_add(text, STR("<p class=\"legend\">"));
    for (int k = 0; k < 3; k++)
        tsr__text_printf(text, "<span><i class=\"%s\"></i>%s</span>",
                         tsr__html_kind((tsr_span_kind)k), tsr__html_kind_words((tsr_span_kind)k));
    tsr__text_add(text,
                  idle ? STR("<span><i class=\"none\"></i>idle</span></p>\n") : STR("</p>\n"));
}

static const char style[] =
    ":root{color-scheme:light "
    "dark;--page:#f9f9f7;--card:#fcfcfb;--ink:#0b0b0b;--soft:#52514e;--faint:#898781;"
    "--grid:#e1e0d9;--line:#c3c2b7;--edge:rgba(11,11,11,.10);--work:#2a78d6;--talk:#eb6834;--wait:#"
    "c3c2b7;"
    "--held:#1baf7a;--track:#efeee9;--bad:#d03b3b;--warn:#b26a00}"
    "@media(prefers-color-scheme:dark){:root{--page:#0d0d0d;--card:#1a1a19;--ink:#fff;--soft:#"
    "c3c2b7;"
    "--grid:#2c2c2a;--line:#383835;--edge:rgba(255,255,255,.10);--work:#3987e5;--talk:#d95926;--"
    "wait:#52514e;"
    "--held:#199e70;--track:#262624;--bad:#e66767;--warn:#fab219}}"
    "*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);"
    "font:15px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif}"
    "main{max-width:1120px;margin:0 auto;padding:32px 20px 64px}"
    "h1{font-size:26px;line-height:1.25;margin:0 0 "
    "4px;overflow-wrap:anywhere}h2{font-size:18px;margin:0 0 2px}"
    "h3{font-size:14px;margin:20px 0 6px;color:var(--soft);font-weight:600}"
    ".lead{color:var(--soft);margin:0 0 14px;max-width:75ch}"
    "section{background:var(--card);border:1px solid "
    "var(--edge);border-radius:10px;padding:20px;margin-top:16px}"
    "nav{margin:10px 0 0;font-size:14px}nav a{color:var(--soft);margin-right:14px}"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(170px,1fr));gap:12px;margin-"
    "top:20px}"
    ".tile{background:var(--card);border:1px solid var(--edge);border-radius:10px;padding:14px "
    "16px}"
    ".tile b{display:block;font-size:24px;font-weight:600;line-height:1.2}.tile "
    "span{color:var(--soft);font-size:13px}"
    "table{border-collapse:collapse;width:100%;font-size:13.5px}"
    "th,td{text-align:left;padding:5px 10px 5px 0;border-bottom:1px solid "
    "var(--grid);vertical-align:top}"
    "th{color:var(--soft);font-weight:600;position:sticky;top:0;background:var(--card)}"
    "td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}"
    "td.name{overflow-wrap:anywhere}code{font:12.5px/1.5 ui-monospace,'Cascadia "
    "Mono',Menlo,monospace}"
    ".scroll{max-height:460px;overflow:auto}.wide{overflow-x:auto}"
    "input[type=search]{font:inherit;width:100%;max-width:420px;padding:6px 10px;margin:0 0 "
    "10px;color:inherit;"
    "background:var(--page);border:1px solid var(--line);border-radius:6px}"
    ".legend{margin:0 0 10px;font-size:13px;color:var(--soft)}.legend "
    "span{margin-right:16px;white-space:nowrap}"
    ".legend "
    "i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:6px;vertical-"
    "align:-1px}"
    ".work{background:var(--work);fill:var(--work)}.talk{background:var(--talk);fill:var(--talk)}"
    ".wait{background:var(--wait);fill:var(--wait)}.held{background:var(--held);fill:var(--held)}"
    ".none{background:var(--track);fill:var(--track)}"
    ".bars{display:grid;grid-template-columns:max-content 1fr max-content;gap:7px "
    "12px;align-items:center;font-size:13.5px}"
    ".bar{display:flex;gap:2px;height:16px;background:var(--track);border-radius:4px;overflow:"
    "hidden}"
    ".bar i{display:block;height:100%}.bars "
    ".n{color:var(--soft);font-variant-numeric:tabular-nums;text-align:right}"
    "svg{display:block}svg text{fill:var(--soft);font:12px system-ui,sans-serif}"
    "svg .dot{fill:var(--card);stroke:var(--work);stroke-width:2}svg .dot+text{fill:var(--ink)}"
    "svg line{stroke:var(--line)}svg .tick{stroke:var(--grid)}"
    ".two{display:grid;grid-template-columns:minmax(260px,360px) 1fr;gap:24px;align-items:start}"
    "@media(max-width:760px){.two{grid-template-columns:1fr}}"
    ".error{color:var(--bad)}.warning{color:var(--warn)}.sev{font-weight:600;white-space:nowrap}"
    ".lanes{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:0 12px;font-size:13px}"
    ".names{padding-top:20px}.names span{display:block;height:22px;line-height:22px}"
    ".ticks{position:relative;height:20px;color:var(--soft);font-size:12px}.ticks "
    "span{position:absolute;white-space:nowrap}"
    ".zoom{float:right;font-size:13px;color:var(--soft)}.zoom input{vertical-align:-3px}"
    "footer{color:var(--faint);font-size:13px;margin-top:24px}"
    "@media print{section{break-inside:avoid}.scroll{max-height:none}}";

static const char script[] =
    "document.querySelectorAll('input[data-filter]').forEach(function(i){i.addEventListener('input'"
    ",function(){"
    "var w=i.value.toLowerCase();document.querySelectorAll('#'+i.dataset.filter+' tbody "
    "tr').forEach(function(r){"
    "r.hidden=w&&r.textContent.toLowerCase().indexOf(w)<0})})});"
    "document.querySelectorAll('input[data-zoom]').forEach(function(i){i.addEventListener('input',"
    "function(){"
    "document.getElementById(i.dataset.zoom).style.width=(100*i.value)+'%'})});";

void tsr__html_begin(struct text *text, const char *title)
{
    tsr__text_add(text,
                  STR("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                      "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n<title>"));
    tsr__html_text(text, title);
    tsr__text_add(text, STR("</title>\n<style>"));
    tsr__text_add(text, str_of(style));
    tsr__text_add(text, STR("</style>\n</head>\n<body>\n<main>\n"));
}

void tsr__html_end(struct text *text)
{
    tsr__text_printf(text, "<footer>Tessera %s</footer>\n</main>\n<script>", tsr_version());
    tsr__text_add(text, str_of(script));
    tsr__text_add(text, STR("</script>\n</body>\n</html>\n"));
}

void tsr__html_section(struct text *text, const char *id, const char *title, const char *lead)
{
    tsr__text_printf(text, "<section id=\"%s\">\n<h2>%s</h2>\n", id, title);
    if (lead)
        tsr__text_printf(text, "<p class=\"lead\">%s</p>\n", lead);
}
