package raftfsm_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/history"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// historyKeys is the number of keys in the history. All belong to one application, so that one transaction can change
// any of them.
const historyKeys = history.FamilySize

// storeClient performs random operations.
type storeClient struct {
	t     *testing.T
	id, n int
	rnd   *rand.Rand
	s     interface {
		state.Store
		state.Transactor
		state.BulkGetter
	}
	h    *history.Keys
	seen [historyKeys]struct{ value, etag string } // newest value and ETag that the client has read or written
}

func historyKey(k int) string { return "app||" + strconv.Itoa(k) }

func (c *storeClient) one() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	if c.rnd.IntN(8) == 0 { // sometimes the deadline is too short to learn the outcome
		cancel()
		ctx, cancel = context.WithTimeout(context.Background(), time.Duration(c.rnd.IntN(1500))*time.Microsecond)
	}
	defer cancel()
	switch c.rnd.IntN(10) {
	case 0, 1, 2:
		c.get(ctx, c.rnd.IntN(historyKeys))
	case 3:
		c.getAll(ctx)
	case 4, 5:
		c.transact(ctx)
	default:
		c.write(ctx, c.change(c.rnd.IntN(historyKeys)))
	}
}

// change returns a random change of key.
func (c *storeClient) change(key int) history.Change {
	c.n++
	ch := history.Change{Key: key, Value: fmt.Sprintf("c%d-%d", c.id, c.n)}
	switch c.rnd.IntN(6) {
	case 0:
		ch.Value = ""
	case 1:
		ch.Absent = true
	case 2, 3:
		ch.Expect = c.seen[key].value
	case 4:
		if c.seen[key].value != "" {
			ch.Value, ch.Expect = "", c.seen[key].value
		}
	}
	return ch
}

func (c *storeClient) item(ch history.Change) state.Write {
	w := state.Write{Key: historyKey(ch.Key), Value: []byte(ch.Value)}
	if ch.Expect != "" {
		w.ETag = c.seen[ch.Key].etag
	}
	if ch.Absent {
		w.Concurrency = state.FirstWrite
	}
	return w
}

func (c *storeClient) get(ctx context.Context, key int) {
	begin := c.h.Now()
	item, err := c.s.Get(ctx, state.GetRequest{Key: historyKey(key),
		ReadOptions: state.ReadOptions{Consistency: state.Strong}})
	if err != nil {
		c.failed(err)
		return
	}
	c.h.Add(c.id, begin, history.KeyCall{Read: []int{key}}, history.KeyAnswer{Values: []string{string(item.Value)}})
	c.note(key, item)
}

func (c *storeClient) getAll(ctx context.Context) {
	req := state.BulkGetRequest{ReadOptions: state.ReadOptions{Consistency: state.Strong}}
	in, out := history.KeyCall{}, history.KeyAnswer{}
	for k := range historyKeys {
		req.Keys, in.Read = append(req.Keys, historyKey(k)), append(in.Read, k)
	}
	begin := c.h.Now()
	items, err := c.s.BulkGet(ctx, req)
	if err != nil {
		c.failed(err)
		return
	}
	for k := range items {
		out.Values = append(out.Values, string(items[k].Value))
	}
	c.h.Add(c.id, begin, in, out)
	for k := range items {
		c.note(k, items[k])
	}
}

func (c *storeClient) note(key int, item state.Item) {
	c.seen[key] = struct{ value, etag string }{string(item.Value), item.ETag}
	c.h.ETag("", key, item.ETag, string(item.Value))
}

func (c *storeClient) write(ctx context.Context, ch history.Change) {
	begin := c.h.Now()
	var w state.Written
	var err error
	item := c.item(ch)
	if ch.Value == "" {
		w, err = c.s.Delete(ctx, state.DeleteRequest{Key: item.Key, ETag: item.ETag, Consistency: state.Strong})
	} else {
		w, err = c.s.Set(ctx, state.SetRequest{Items: []state.Write{item}, Consistency: state.Strong})
	}
	c.written(begin, []history.Change{ch}, w, err)
}

func (c *storeClient) transact(ctx context.Context) {
	var req state.TransactRequest
	var changes []history.Change
	for _, key := range c.rnd.Perm(historyKeys)[:2] {
		ch := c.change(key)
		op := state.Operation{Write: c.item(ch)}
		if ch.Value == "" {
			op.Kind = state.Remove
		}
		changes, req.Operations = append(changes, ch), append(req.Operations, op)
	}
	begin := c.h.Now()
	w, err := c.s.Transact(ctx, req)
	c.written(begin, changes, w, err)
}

// written records the outcome of a write.
func (c *storeClient) written(begin int64, changes []history.Change, w state.Written, err error) {
	out := history.KeyAnswer{Conflict: fault.Is(err, fault.Conflict), Unknown: fault.Is(err, fault.Indeterminate)}
	if err != nil && !out.Conflict && !out.Unknown {
		c.failed(err) // certainly not applied; it must have no effect
		return
	}
	c.h.Add(c.id, begin, history.KeyCall{Write: changes}, out)
	for i, ch := range changes {
		c.seen[ch.Key] = struct{ value, etag string }{}
		if err == nil && ch.Value != "" {
			c.seen[ch.Key].value, c.seen[ch.Key].etag = ch.Value, w.ETags[i]
			c.h.ETag("", ch.Key, w.ETags[i], ch.Value)
		}
	}
}

// failed fails the test unless err is fault.Timeout or fault.Unavailable.
func (c *storeClient) failed(err error) {
	if !fault.Is(err, fault.Timeout) && !fault.Is(err, fault.Unavailable) {
		c.t.Errorf("client %d: %v", c.id, err)
	}
}

func TestHistory_OneNodeIsLinearizable(t *testing.T) {
	forEngines(t, func(t *testing.T, e raftlog.Engine) {
		seed := rand.Uint64()
		o := options(t, filepath.Join(t.TempDir(), "data"))
		o.Engine = e
		o.Bounds.SnapshotEntries, o.Bounds.TrailingEntries, o.Bounds.EntryCount = 100, 64, 3
		o.Timing.SnapshotPoll = 5 * time.Millisecond
		s := open(t, o).Store("", "s")
		h := history.NewKeys(history.WallClock())
		var wg sync.WaitGroup
		for id := range 6 {
			wg.Go(func() {
				c := &storeClient{t: t, id: id, rnd: rand.New(rand.NewPCG(seed, uint64(id))), s: s, h: h}
				for range 120 {
					c.one()
				}
			})
		}
		wg.Wait()
		last := &storeClient{t: t, id: 100, s: s, h: h}
		last.getAll(context.Background())
		t.Logf("seed %d: %s", seed, h)
		if h.Size() < 300 || h.Conflicts() == 0 {
			t.Error("the history shows too little")
		}
		if err := h.Check(5*time.Minute, os.TempDir()); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	})
}
