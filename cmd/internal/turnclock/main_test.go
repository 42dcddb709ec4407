package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A new Go may read its clock in another way: then the overlay would turn nothing.
func TestTheOverlayFitsThisGo(t *testing.T) {
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
			t.Errorf("%s: the clock of %s is not turned", changed, original)
		}
	}
	if len(overlay.Replace) != 1 {
		t.Errorf("%d files are replaced", len(overlay.Replace))
	}
}

func TestAClockThatIsReadInAnotherWayIsRefused(t *testing.T) {
	if _, err := turn("func Now() Time { return later() }"); err == nil {
		t.Error("nothing was said")
	}
}
