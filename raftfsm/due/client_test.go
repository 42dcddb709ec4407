package due_test

import (
	"context"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/due"
	"github.com/quorate/quorate/raftfsm/records"
)

// access is the access of a node to the group of a world.
type access struct {
	records.Access // has the methods that the test does not need

	w      *world
	origin uint64
	seq    uint64
	lost   func() // called when the first answer is lost; the call is then repeated
}

func (a *access) Locate(context.Context, string, string) (uint32, error) { return 0, nil }

func (a *access) WithID(_ context.Context, _ uint32, f func(command.RequestID) (known bool, err error)) error {
	for {
		a.seq++
		if known, err := f(command.RequestID{Origin: a.origin, Seq: a.seq}); known {
			return err
		}
	}
}

func (a *access) Ask(ctx context.Context, _ uint32, _ string, body []byte) (answer []byte, repeated bool, err error) {
	serve := func() ([]byte, error) {
		c, err := due.ReadCall(&lenprefix.Reader{Rest: body})
		if err != nil {
			return nil, err
		}
		return a.w.keeper.Serve(ctx, &c)
	}
	if answer, err = serve(); err == nil && a.lost != nil {
		a.lost()
		a.lost = nil
		answer, err = serve()
		return answer, true, err
	}
	return answer, false, err
}

func TestRemove_RepeatedCallDoesNotRemoveLaterWork(t *testing.T) {
	w := newWorld(t)
	res, err := w.apply(&command.Request{Kind: command.KindRegister, Name: "node"})
	testutil.Must(t, err)
	a := &access{w: w, origin: res.Revisions[0]}
	c := due.NewClient(a, nil)
	w.put(job("a", time.Minute))
	a.lost = func() { w.put(job("a", time.Hour)) }
	removed, err := c.Remove(t.Context(), home("shop"), "a")
	if !removed || err != nil {
		t.Error(removed, err)
	}
	if _, found := w.get("a"); !found {
		t.Error("the call has removed the job twice, the second time a later one")
	}
	w.checkIndex()
	for _, want := range []bool{true, false} {
		if removed, err := c.Remove(t.Context(), home("shop"), "a"); removed != want || err != nil {
			t.Error(removed, err)
		}
	}
}
