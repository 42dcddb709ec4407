package actorhost

import (
	"path/filepath"
	"testing"
)

func TestHoldings_RememberApplicationsOverARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "actors")
	begin := func(app string, want bool) {
		t.Helper()
		if held, err := holdings(dir).Begin(app); err != nil || held != want {
			t.Errorf("%s is held: %v, %v", app, held, err)
		}
	}
	begin("a/b", false)
	begin("c", false)
	if err := holdings(dir).End("c"); err != nil {
		t.Error(err)
	}
	begin("a/b", true)
	begin("c", false)
	if err := holdings(dir).End("never"); err != nil {
		t.Error(err)
	}
}
