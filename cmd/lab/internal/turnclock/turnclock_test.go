package turnclock

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A new Go version may read its clock differently. Then the overlay would have no effect.
func TestOverlay_AppliesToThisGo(t *testing.T) {
	dir := t.TempDir()
	if err := write(dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "overlay.json"))
	if err != nil {
		t.Fatal(err)
	}
	var overlay struct{ Replace map[string]string }
	if err := json.Unmarshal(text, &overlay); err != nil {
		t.Fatal(err)
	}
	for original, changed := range overlay.Replace {
		a, err := os.ReadFile(original)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(changed)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(b), "sec += wallShift") || strings.Contains(string(a), "wallShift") {
			t.Errorf("%s: the clock of %s is not shifted", changed, original)
		}
	}
	if len(overlay.Replace) != 1 {
		t.Errorf("%d files are replaced", len(overlay.Replace))
	}
}

func TestOverlay_RefusesAChangedClock(t *testing.T) {
	if _, err := turn("func Now() Time { return later() }"); err == nil {
		t.Error("no error")
	}
}
