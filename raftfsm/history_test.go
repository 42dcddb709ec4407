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

	"github.com/anishathalye/porcupine"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// The model: a few keys of one application, so that any of them may be changed in one transaction. Every value
// is written once only, so a condition on an ETag is a condition on its value.
const historyKeys = 3

type keys [historyKeys]string // value by key; empty = absent

// change is one operation of a write.
type change struct {
	key    int
	value  string // empty = delete
	expect string // for cond
	cond   cond
}

type cond uint8

const (
	always cond = iota
	ifValue
	ifAbsent
)

// input is a write of one or several changes, or a read of one or all keys.
type input struct {
	changes []change
	read    []int
}

type output struct {
	values   []string
	conflict bool
	unknown  bool
}

func storeModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return keys{} },
		Step: func(s, in, out any) (bool, any) {
			have, i, o := s.(keys), in.(input), out.(output)
			for n, k := range i.read {
				if o.values[n] != have[k] {
					return false, s
				}
			}
			if len(i.read) > 0 {
				return true, s
			}
			next, holds := apply(have, i.changes)
			switch {
			case o.unknown && !holds:
				return true, s
			case o.unknown:
				return true, next
			case holds == o.conflict:
				return false, s
			case !holds:
				return true, s
			}
			return true, next
		},
		DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
	}
}

// apply checks all conditions first, then makes the changes in order.
func apply(have keys, changes []change) (keys, bool) {
	for _, c := range changes {
		if (c.cond == ifValue && (have[c.key] != c.expect || c.expect == "")) ||
			(c.cond == ifAbsent && have[c.key] != "") {
			return have, false
		}
	}
	for _, c := range changes {
		have[c.key] = c.value
	}
	return have, true
}

// recorder collects a history, and checks that an ETag belongs to one value.
type recorder struct {
	start time.Time
	mu    sync.Mutex
	ops   []porcupine.Operation
	tags  map[string]string // value by key and ETag
}

func (r *recorder) now() int64 { return int64(time.Since(r.start)) }

func (r *recorder) add(client int, begin int64, in input, out output) {
	end := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if out.unknown {
		client, end = 1000+len(r.ops), int64(1)<<62
	}
	r.ops = append(r.ops, porcupine.Operation{ClientId: client, Input: in, Call: begin, Output: out, Return: end})
}

func (r *recorder) tag(t *testing.T, key int, etag, value string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := fmt.Sprintf("%d/%s", key, etag)
	if had, ok := r.tags[id]; ok && had != value {
		t.Errorf("ETag %s of key %d names %q and %q", etag, key, had, value)
	}
	r.tags[id] = value
}

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
	r    *recorder
	seen [historyKeys]struct{ value, etag string } // as read last
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
func (c *storeClient) change(key int) change {
	c.n++
	ch := change{key: key, value: fmt.Sprintf("c%d-%d", c.id, c.n)}
	switch c.rnd.IntN(6) {
	case 0:
		ch.value = ""
	case 1:
		ch.cond = ifAbsent
	case 2, 3:
		if c.seen[key].value != "" {
			ch.cond, ch.expect = ifValue, c.seen[key].value
		}
	case 4:
		if c.seen[key].value != "" {
			ch.value, ch.cond, ch.expect = "", ifValue, c.seen[key].value
		}
	}
	return ch
}

func (c *storeClient) item(ch change) state.Write {
	w := state.Write{Key: historyKey(ch.key), Value: []byte(ch.value)}
	switch ch.cond {
	case ifValue:
		w.ETag = c.seen[ch.key].etag
	case ifAbsent:
		w.Concurrency = state.FirstWrite
	}
	return w
}

func (c *storeClient) get(ctx context.Context, key int) {
	begin := c.r.now()
	item, err := c.s.Get(ctx, state.GetRequest{Key: historyKey(key),
		ReadOptions: state.ReadOptions{Consistency: state.Strong}})
	if err != nil {
		c.failed(err)
		return
	}
	c.r.add(c.id, begin, input{read: []int{key}}, output{values: []string{string(item.Value)}})
	c.note(key, item)
}

func (c *storeClient) getAll(ctx context.Context) {
	req := state.BulkGetRequest{ReadOptions: state.ReadOptions{Consistency: state.Strong}}
	in, out := input{}, output{}
	for k := range historyKeys {
		req.Keys, in.read = append(req.Keys, historyKey(k)), append(in.read, k)
	}
	begin := c.r.now()
	items, err := c.s.BulkGet(ctx, req)
	if err != nil {
		c.failed(err)
		return
	}
	for k := range items {
		out.values = append(out.values, string(items[k].Value))
	}
	c.r.add(c.id, begin, in, out)
	for k := range items {
		c.note(k, items[k])
	}
}

func (c *storeClient) note(key int, item state.Item) {
	c.seen[key] = struct{ value, etag string }{string(item.Value), item.ETag}
	if item.Found() {
		c.r.tag(c.t, key, item.ETag, string(item.Value))
	}
}

func (c *storeClient) write(ctx context.Context, ch change) {
	begin := c.r.now()
	var w state.Written
	var err error
	item := c.item(ch)
	if ch.value == "" && ch.cond != ifAbsent {
		w, err = c.s.Delete(ctx, state.DeleteRequest{Key: item.Key, ETag: item.ETag, Consistency: state.Strong})
	} else {
		w, err = c.s.Set(ctx, state.SetRequest{Items: []state.Write{item}, Consistency: state.Strong})
	}
	c.written(begin, []change{ch}, w, err)
}

func (c *storeClient) transact(ctx context.Context) {
	var req state.TransactRequest
	var changes []change
	for _, key := range c.rnd.Perm(historyKeys)[:2] {
		ch := c.change(key)
		op := state.Operation{Write: c.item(ch)}
		if ch.value == "" {
			op.Kind = state.Remove
		}
		changes, req.Operations = append(changes, ch), append(req.Operations, op)
	}
	begin := c.r.now()
	w, err := c.s.Transact(ctx, req)
	c.written(begin, changes, w, err)
}

// written records the outcome of a write.
func (c *storeClient) written(begin int64, changes []change, w state.Written, err error) {
	out := output{conflict: fault.Is(err, fault.Conflict), unknown: fault.Is(err, fault.Indeterminate)}
	if err != nil && !out.conflict && !out.unknown {
		c.failed(err) // certainly not applied; it must have no effect
		return
	}
	c.r.add(c.id, begin, input{changes: changes}, out)
	for i, ch := range changes {
		c.seen[ch.key] = struct{ value, etag string }{}
		if err == nil && ch.value != "" {
			c.seen[ch.key].value, c.seen[ch.key].etag = ch.value, w.ETags[i]
			c.r.tag(c.t, ch.key, w.ETags[i], ch.value)
		}
	}
}

// failed accepts the errors of calls that ended too early.
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
		r := &recorder{start: time.Now(), tags: map[string]string{}}
		var wg sync.WaitGroup
		for id := range 6 {
			wg.Go(func() {
				c := &storeClient{t: t, id: id, rnd: rand.New(rand.NewPCG(seed, uint64(id))), s: s, r: r}
				for range 120 {
					c.one()
				}
			})
		}
		wg.Wait()
		last := &storeClient{t: t, id: 100, s: s, r: r}
		last.getAll(context.Background())
		checkHistory(t, seed, r)
	})
}

func checkHistory(t *testing.T, seed uint64, r *recorder) {
	t.Helper()
	unknown, conflicts := 0, 0
	for _, op := range r.ops {
		if op.Output.(output).unknown {
			unknown++
		}
		if op.Output.(output).conflict {
			conflicts++
		}
	}
	t.Logf("seed %d: %d operations, %d conflicts, %d of unknown outcome", seed, len(r.ops), conflicts, unknown)
	if len(r.ops) < 300 || conflicts == 0 {
		t.Error("the history shows too little")
	}
	result, info := porcupine.CheckOperationsVerbose(storeModel(), r.ops, 5*time.Minute)
	if result == porcupine.Ok {
		return
	}
	path := filepath.Join(os.TempDir(), fmt.Sprintf("history-%d.html", seed))
	if f, err := os.Create(path); err == nil {
		_ = porcupine.Visualize(storeModel(), info, f)
		_ = f.Close()
	}
	t.Fatalf("seed %d: the history is not linearizable (%s); see %s", seed, result, path)
}
