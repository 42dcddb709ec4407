package actors_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
)

func TestHost_KnowsItsActiveActors(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		for _, method := range []string{"a", "b", "c"} {
			if err := <-w.call(t.Context(), method, ""); err != nil {
				t.Error(err)
			}
		}
		if w.located != 1 {
			t.Errorf("%d requests to the directory for the owner of an active actor", w.located)
		}
	})
}

func TestHost_ActiveActorsNeedLittleMemory(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		const n = 5000
		w.forgets = true
		before := heap()
		for i := range n {
			request := strings.Repeat("x", 1000) + fmt.Sprint(i) // an id is a part of the text of its request
			_, err := w.runtime.Do(t.Context(), &actors.Call{Actor: api.Actor{Type: "T", ID: request[1000:]},
				Method: "m", Verb: "POST"})
			if err != nil {
				t.Fatal(err)
			}
		}
		if each := (heap() - before) / n; each > 600 {
			t.Errorf("an active actor needs %d bytes", each)
		} else {
			t.Logf("an active actor needs %d bytes", each)
		}
	})
}

// heap returns the bytes that are in use.
func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc) //nolint:gosec // far below 2^63
}
