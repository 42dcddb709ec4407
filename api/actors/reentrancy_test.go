package actors_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
)

const reentrant = `{"entities":["T"],"reentrancy":{"enabled":true,"maxStackDepth":3}}`

// callFrom begins a call of an actor by an application, with a chain that the application chooses. It returns the
// chain of the turn, or "" if the turn has not begun, and the channel that receives the error of the call.
func (w *world) callFrom(caller, id, method, chosen string) (chain string, done chan error) {
	w.mu.Lock()
	before := len(w.headers)
	w.mu.Unlock()
	done = make(chan error, 1)
	header := http.Header{"Dapr-Reentrancy-Id": {chosen}, "Quorate-Actor-Chain": {chosen}}
	go func() {
		c := &actors.Call{Actor: api.Actor{Type: "T", ID: id}, Method: method, Verb: "POST", Header: header}
		_, err := actors.NewService(api.App{ID: caller}, w.runtime).Do(w.t.Context(), c)
		done <- err
	}()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.headers) > before {
		chain = w.headers[before].Get("Dapr-Reentrancy-Id")
	}
	return chain, done
}

func (w *world) end(methods []string, calls ...chan error) {
	w.t.Helper()
	for _, m := range methods {
		w.finish(m)
		synctest.Wait()
	}
	for _, done := range calls {
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	}
}

func TestReentrancy_CallersDoNotChooseTheChain(t *testing.T) {
	for _, caller := range []string{"app", "other"} {
		inWorld(t, reentrant, func(t *testing.T, w *world) {
			chain, first := w.callFrom(caller, "1", "wait1", "mine")
			if chain == "" || chain == "mine" {
				t.Errorf("%s: the turn has the chain %q", caller, chain)
			}
			overlapping, second := w.callFrom(caller, "1", "wait2", "mine")
			if overlapping != "" {
				t.Errorf("%s: a second call with the same id has entered the actor with the chain %q", caller,
					overlapping)
			}
			w.end([]string{"wait1", "wait2"}, first, second)
		})
	}
}

func TestReentrancy_ChainReachesOtherActorsWhileItsTurnRuns(t *testing.T) {
	inWorld(t, reentrant, func(t *testing.T, w *world) {
		chain, first := w.callFrom("other", "1", "wait1", "")
		onward, second := w.callFrom("app", "2", "wait2", chain)
		if onward != chain {
			t.Errorf("a call of the application in the turn has the chain %q, want %q", onward, chain)
		}
		back, third := w.callFrom("app", "1", "wait3", chain)
		if back != chain {
			t.Errorf("the way back into the first actor has the chain %q, want %q", back, chain)
		}
		// An application without a turn cannot begin a turn with a given chain, but may call an actor of the chain.
		strange, fourth := w.callFrom("other", "3", "wait4", chain)
		if strange == "" || strange == chain {
			t.Errorf("a call of an application outside of the chain has the chain %q", strange)
		}
		returned, fifth := w.callFrom("other", "1", "wait5", chain)
		if returned != chain {
			t.Errorf("a call that returns through another application has the chain %q, want %q", returned, chain)
		}
		w.end([]string{"wait3", "wait2", "wait1", "wait4", "wait5"}, first, second, third, fourth, fifth)
		late, sixth := w.callFrom("app", "2", "wait6", chain)
		if late == "" || late == chain {
			t.Errorf("after its turns, the chain is %q again", late)
		}
		w.end([]string{"wait6"}, sixth)
	})
}

// A call of a running turn to its own actor passes while the host drains. Otherwise the turn could not end.
func TestReentrancy_PassesWhileTheHostDrains(t *testing.T) {
	inWorld(t, reentrant, func(t *testing.T, w *world) {
		chain, first := w.callFrom("app", "1", "wait1", "")
		drained := make(chan struct{})
		go func() { w.runtime.Drain(t.Context()); close(drained) }()
		in(time.Second)
		back, second := w.callFrom("app", "1", "wait2", chain)
		if back != chain {
			t.Errorf("the call of the turn has the chain %q, want %q", back, chain)
		}
		w.end([]string{"wait2", "wait1"}, first, second)
		<-drained
	})
}
