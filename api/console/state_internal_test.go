package console

import (
	"strings"
	"testing"

	"github.com/quorate/quorate/component/state"
)

func TestPretty_CutsNoCharacter(t *testing.T) {
	for before := range 5 {
		long := strings.Repeat("a", maxShown-before) + strings.Repeat("€", 10)
		shown, note := pretty(state.Item{Value: []byte(long), Size: int64(len(long))})
		if note == "" || len(shown) <= maxShown-4 || !strings.HasPrefix(long, shown) {
			t.Errorf("with %d bytes before the limit: %d bytes are shown: %s", before, len(shown), note)
		}
	}
}

// JSON is indented only if that needs little memory.
func TestIndented_BoundsTheNesting(t *testing.T) {
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, c := range []struct {
		json string
		want bool
	}{
		{nested(maxNesting), true},
		{nested(maxNesting + 1), false},
		{"[" + strings.Repeat(nested(2)+",", 100) + "1]", true}, // many, but not deep
		{strings.Repeat(`["}]\"", `, 10_000) + strings.Repeat("]", 10_000), false},
		{`["` + strings.Repeat("[", 100) + `"]`, true},
		{"[", false},
	} {
		out, ok := indented([]byte(c.json))
		if ok != c.want || len(out) > 64<<10 {
			t.Errorf("%.40s…: %t, %d bytes", c.json, ok, len(out))
		}
	}
}
