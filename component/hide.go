package component

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Hide returns the text with "***" in place of each of the given values. It also replaces their quoted and URL-escaped
// forms.
func Hide(text string, values []string) string {
	for _, form := range forms(values) {
		if form == "" {
			continue
		}
		text = strings.ReplaceAll(text, form, "***")
	}
	return text
}

// forms returns every form in which the values may appear in a message: plain, quoted and URL-escaped. Longer forms
// come first, because replacing a shorter form first could leave parts of a longer form.
func forms(values []string) []string {
	var out []string
	for _, value := range values {
		quoted := strconv.Quote(value)
		out = append(out, value, quoted[1:len(quoted)-1], url.QueryEscape(value), url.PathEscape(value))
	}
	slices.SortFunc(out, func(a, b string) int { return len(b) - len(a) })
	return slices.Compact(out)
}
