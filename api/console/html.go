package console

import (
	stdhtml "html"
	"strconv"
	"strings"
)

// The functions that pages use often are not inlined: inlined, they would add some hundred kilobytes to the binary.

// html is HTML in which all text is escaped. Convert to this type only constants, numbers, and text that was built
// from html values. For all other text, use the functions of this file.
type html string

// h returns format with each % replaced by the next argument. format must be a constant. An attribute value that
// contains % must be in quotes.
//
//go:noinline
func h(format string, args ...html) html {
	size := len(format)
	for _, a := range args {
		size += len(a)
	}
	var b strings.Builder
	b.Grow(size)
	for i := 0; ; i++ {
		before, after, more := strings.Cut(format, "%")
		b.WriteString(before)
		if !more {
			return html(b.String())
		}
		b.WriteString(string(args[i]))
		format = after
	}
}

// esc escapes text.
//
//go:noinline
func esc(s string) html { return html(stdhtml.EscapeString(s)) }

// text renders s. An empty s becomes a dash.
//
//go:noinline
func text(s string) html {
	if s == "" {
		return `<span class="dim">–</span>`
	}
	return esc(s)
}

// num renders a number.
//
//go:noinline
func num(n uint64) html { return html(strconv.FormatUint(n, 10)) }

// some renders a number. 0 becomes a dash.
//
//go:noinline
func some(n uint64) html {
	if n == 0 {
		return text("")
	}
	return num(n)
}

// when returns x if holds is true, and "" otherwise.
//
//go:noinline
func when(holds bool, x html) html {
	if holds {
		return x
	}
	return ""
}

// joined concatenates the elements of a list.
//
//go:noinline
func joined(list []html) html {
	var b strings.Builder
	for _, x := range list {
		b.WriteString(string(x))
	}
	return html(b.String())
}

// row renders one line of a table.
//
//go:noinline
func row(cells ...html) html {
	var b strings.Builder
	b.WriteString("<tr>")
	for _, c := range cells {
		b.WriteString("<td>")
		b.WriteString(string(c))
		b.WriteString("</td>")
	}
	b.WriteString("</tr>")
	return html(b.String())
}

// code renders text in a fixed-width font.
//
//go:noinline
func code(s string) html { return h("<code>%</code>", text(s)) }

// hidden renders a hidden field of a form.
//
//go:noinline
func hidden(name, value string) html {
	return h(`<input type="hidden" name="%" value="%">`, esc(name), esc(value))
}

// label renders a text field with its label. extra has further attributes of the field.
//
//go:noinline
func label(title, name, value string, extra html) html {
	return h(`<label>% <input name="%" value="%" autocomplete="off"%></label>`, esc(title), esc(name), esc(value),
		extra)
}

// choose renders a drop-down list with a label. Each option is a value, or has the form "value=text", where text is
// what the user sees. current is the value of the selected option.
//
//go:noinline
func choose(title, name, current string, options []string) html {
	var list []html
	for _, o := range options {
		value, shown, two := strings.Cut(o, "=")
		if !two {
			shown = value
		}
		list = append(list, h(`<option value="%"%>%</option>`, esc(value), when(value == current, " selected"),
			esc(shown)))
	}
	return h(`<label>% <select name="%">%</select></label>`, esc(title), esc(name), joined(list))
}

// area renders a text area with its label. more has further attributes of the text area.
//
//go:noinline
func area(title, value, example string, more html) html {
	return h(`<label>% <textarea name="value" rows="8" spellcheck="false" placeholder="%"%>%</textarea></label>`,
		esc(title), esc(example), more, "\n"+esc(value)) // HTML ignores the first end of line
}
