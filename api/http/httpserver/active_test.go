package httpserver

import "testing"

func TestActive_RefusesAfterCloseAndReportsLastExit(t *testing.T) {
	t.Parallel()
	var a active
	for range 2 {
		if !a.Enter() {
			t.Fatal("refused before drain")
		}
	}
	empty := a.drain()
	if a.Enter() {
		t.Error("entered after drain")
	}
	a.Leave()
	select {
	case <-empty:
		t.Error("empty although one is left")
	default:
	}
	a.Leave()
	<-empty
	<-a.drain()
	if a.Enter() {
		t.Error("entered after it was empty")
	}
}
