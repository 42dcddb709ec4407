package due_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/due"
	"github.com/quorate/quorate/raftfsm/kv"
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

func (a *access) List(_ context.Context, _ uint32, store string, p records.Page) (keys []string, more bool, err error) {
	listed, more, err := a.w.machine.List(store, p.Prefix, p.After, p.Limit, 0)
	for i := range listed {
		keys = append(keys, listed[i].Key)
	}
	return keys, more, err
}

func (a *access) Values(_ context.Context, _ uint32, store string, keys []string) ([]kv.Value, error) {
	return a.w.machine.GetMany(store, keys, 0)
}

// A list of large work ends early, and the next one continues it.
func TestList_BoundedByBytes(t *testing.T) {
	w := newWorld(t)
	c := due.NewClient(&access{w: w}, nil)
	const all = 40
	for i := range all {
		p := job(fmt.Sprintf("%02d", i), time.Minute)
		p.Spec.Payload = make([]byte, 300<<10)
		w.put(p)
	}
	pages, next := 0, 0
	for after, more := "", true; more; pages++ {
		var list []due.Work
		var err error
		list, more, err = c.List(t.Context(), home("shop"), "", after, records.MaxPage)
		testutil.Must(t, err)
		if len(list) == 0 || len(list) > 16 {
			t.Fatalf("a page has %d items", len(list))
		}
		for _, found := range list {
			if want := fmt.Sprintf("%02d", next); found.Name != want {
				t.Fatalf("listed %s, want %s", found.Name, want)
			}
			next++
		}
		after = list[len(list)-1].Name
	}
	if pages != 3 || next != all {
		t.Errorf("%d pages with %d items", pages, next)
	}
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
