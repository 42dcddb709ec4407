package fault

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestShorten_CutsBetweenCharacters(t *testing.T) {
	for _, c := range []struct {
		text  string
		limit int
		want  string
	}{
		{"", 0, ""}, {"abc", 3, "abc"}, {"abcdef", 5, "ab..."}, {"äöü", 6, "äöü"}, {"äöüß", 6, "ä..."},
		{"€€€", 8, "€..."}, {"😀😀", 7, "😀..."}, {"abcd", 2, ".."},
		{"\x80\x80\x80\x80\x80\x80\x80\x80\x80", 8, "\x80..."},
	} {
		got := Shorten(c.text, c.limit)
		if got != c.want || len(got) > c.limit && len(c.text) > c.limit {
			t.Errorf("Shorten(%q, %d) = %q, want %q", c.text, c.limit, got, c.want)
		}
	}
	for n := range 40 {
		if got := Shorten(strings.Repeat("a€😀", 9), n); !utf8.ValidString(got) || len(got) > n {
			t.Errorf("limit %d: %q", n, got)
		}
	}
}
