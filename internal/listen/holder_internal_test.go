package listen

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestProcess_LongCommandIsCutBetweenCharacters(t *testing.T) {
	for _, first := range []string{"", "x"} { // one of them has a character at the limit
		words := []string{"quorate", first + strings.Repeat("\u00e9", 100)}
		p := process{pid: 7, command: words, quorate: true, mine: true}
		text := p.text()
		if !utf8.ValidString(text) || !strings.HasPrefix(text, "pid 7, quorate "+first+"\u00e9") ||
			!strings.HasSuffix(text, "\u00e9..., a Quorate node of this user") {
			t.Errorf("%q", text)
		}
	}
}
