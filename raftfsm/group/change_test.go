package group

import (
	"testing"

	"github.com/quorate/quorate/internal/fault"
)

// unanswered is a change that raft has accepted, but whose result it never gives.
type unanswered struct{ never chan struct{} }

func (u unanswered) Error() error {
	<-u.never
	return nil
}

func TestChange_ClosingIsIndeterminate(t *testing.T) {
	f := unanswered{make(chan struct{})}
	defer close(f.never)
	g := &Group{stop: make(chan struct{})}
	close(g.stop)
	wantCode(t, g.change(t.Context(), "remove a server", f), fault.Indeterminate)
}
