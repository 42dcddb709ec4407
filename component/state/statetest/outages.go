package statetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// Recording records the calls of concurrent clients of a store while the server of the store fails and returns.
// Unlike the suite, it accepts errors. After fault.Indeterminate a call may have been executed. After any other
// error it must not have been executed.
type Recording struct {
	t     *testing.T
	store state.Store
	keys  []string
	begin time.Time
	stop  context.CancelFunc
	ended sync.WaitGroup

	mu         sync.Mutex // guards the fields below
	operations []porcupine.Operation
	done       int
	failed     map[fault.Code]int
}

// Record starts clients that read and write a few keys, until Check.
func Record(t *testing.T, store state.Store, keys ...string) *Recording {
	const clients = 6
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	r := &Recording{t: t, store: store, keys: keys, begin: time.Now(), stop: stop, failed: map[fault.Code]int{}}
	for id := range clients {
		r.ended.Go(func() { r.client(ctx, id) })
	}
	t.Cleanup(func() {
		stop()
		r.ended.Wait()
	})
	return r
}

// More waits until n more calls were done.
func (r *Recording) More(n int) {
	r.t.Helper()
	r.mu.Lock()
	goal := r.done + n
	r.mu.Unlock()
	r.wait(func() (int, string) { return goal - r.done, "calls" })
}

// Failed waits until n calls have failed with one of the codes, since the start.
func (r *Recording) Failed(n int, codes ...fault.Code) {
	r.t.Helper()
	r.wait(func() (int, string) {
		left := n
		for _, code := range codes {
			left -= r.failed[code]
		}
		return left, fmt.Sprintf("calls that fail with %v", codes)
	})
}

func (r *Recording) wait(left func() (int, string)) {
	r.t.Helper()
	testutil.Eventually(r.t, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if n, what := left(); n > 0 {
			return fmt.Errorf("%d %s are missing; so far %d were done and failed: %v", n, what, r.done, r.failed)
		}
		return nil
	})
}

// Check stops the clients and reads all keys. It fails the test unless some order of the calls explains all answers.
func (r *Recording) Check() {
	r.t.Helper()
	r.stop()
	r.ended.Wait()
	for _, key := range r.keys {
		testutil.Eventually(r.t, func() error { return r.call(0, input{key: key, kind: 'g'}, nil) })
	}
	result := porcupine.CheckOperationsTimeout(outageModel(), r.operations, time.Minute)
	if result != porcupine.Ok {
		r.t.Errorf("no order of the %d calls explains their answers: %s", len(r.operations), result)
	}
	r.t.Logf("%d calls were done; failed: %v", r.done, r.failed)
}

// client makes calls until ctx ends.
func (r *Recording) client(ctx context.Context, id int) {
	const pause = 5 * time.Millisecond // after an error, so that an outage does not fill the recording
	source := rand.New(rand.NewPCG(1, uint64(id)))
	etags := map[string]string{}
	for i := 0; ctx.Err() == nil; i++ {
		in := input{key: r.keys[source.IntN(len(r.keys))], kind: "ggscuuuudx"[source.IntN(10)],
			value: strconv.Itoa(id) + "-" + strconv.Itoa(i)}
		if in.etag = etags[in.key]; in.etag == "" && (in.kind == 'u' || in.kind == 'x') {
			in.kind = 'g'
		}
		if r.call(id, in, etags) == nil {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// outcome is the answer to a call, as the model sees it.
type outcome struct {
	output
	unknown bool // it may have been done
}

// call makes one call and records it. It notes the new ETag in etags.
func (r *Recording) call(id int, in input, etags map[string]string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), 10*time.Second)
	defer cancel()
	begun := time.Since(r.begin)
	out, err := r.perform(ctx, in)
	ended := int64(time.Since(r.begin))
	if fault.Is(err, fault.Conflict) {
		out, err = outcome{output: output{conflict: true}}, nil
		delete(etags, in.key)
	} else if err == nil && etags != nil {
		if etags[in.key] = out.etag; out.etag == anyETag {
			delete(etags, in.key) // until a read shows the ETag
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.failed[fault.CodeOf(err)]++
		switch code := fault.CodeOf(err); code {
		case fault.Indeterminate:
			out, ended = outcome{unknown: true}, math.MaxInt64
		case fault.Unavailable, fault.Timeout, fault.ReadOnly, fault.Overloaded:
			return err
		default:
			r.t.Errorf("a call failed: %v (%s)", err, code)
			return err
		}
	} else {
		r.done++
	}
	r.operations = append(r.operations, porcupine.Operation{ClientId: id, Input: in, Output: out, Call: int64(begun),
		Return: ended})
	return err
}

// perform makes the call of an input.
func (r *Recording) perform(ctx context.Context, in input) (outcome, error) {
	w := state.Write{Key: in.key, Value: []byte(strconv.Quote(in.value))}
	switch in.kind {
	case 'g':
		item, err := r.store.Get(ctx, state.GetRequest{Key: in.key, ReadOptions: strong()})
		if err != nil || !item.Found() {
			return outcome{}, err
		}
		value, err := strconv.Unquote(string(item.Value))
		return outcome{output: output{value: value, etag: item.ETag}}, err
	case 'd', 'x':
		d := state.DeleteRequest{Key: in.key, Consistency: state.Strong}
		if in.kind == 'x' {
			d.ETag = in.etag
		}
		_, err := r.store.Delete(ctx, d)
		return outcome{}, err
	case 'c':
		w.Concurrency = state.FirstWrite
	case 'u':
		w.ETag = in.etag
	}
	written, err := r.store.Set(ctx, state.SetRequest{Items: []state.Write{w}, Consistency: state.Strong})
	if err != nil {
		return outcome{}, err
	}
	switch len(written.ETags) {
	case 0: // the store does not know the ETags of its writes; the suite checks those that do
		return outcome{output: output{etag: anyETag}}, nil
	case 1:
		return outcome{output: output{etag: written.ETags[0]}}, nil
	}
	return outcome{}, errors.New("a write of one item returned several ETags")
}

// anyETag is the ETag of a value whose write was not answered.
const anyETag = "?"

// outageModel is model with calls that may have been done.
func outageModel() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init:      func() []any { return []any{register{}} },
		Partition: byKey,
		Step: func(before, in, out any) (after []any) {
			for _, r := range outageStep(before.(register), in.(input), out.(outcome)) {
				after = append(after, r)
			}
			return after
		},
	}
	return m.ToModel()
}

// outageStep returns the states that a call may leave.
func outageStep(before register, in input, out outcome) []register {
	if before.etag == anyETag {
		return afterUnknown(before, in, out)
	}
	if !out.unknown {
		if ok, after := step(before, in, out.output); ok {
			return []register{after}
		}
		return nil
	}
	out.etag = anyETag
	if ok, after := step(before, in, out.output); ok && in.kind != 'g' {
		return []register{before, after}
	}
	return []register{before}
}

// afterUnknown returns the states that a call may leave, like outageStep, for a value whose ETag is unknown. A
// condition of the call on this ETag may have been met or not. afterUnknown accepts both.
func afterUnknown(before register, in input, out outcome) []register {
	assumed := in.etag
	if in.kind == 'g' {
		assumed = out.etag
	}
	if assumed == "" {
		assumed = anyETag + anyETag // some ETag, which matters for none of these calls
	}
	before.etag = assumed
	holds := outageStep(before, in, out)
	before.etag = anyETag
	if (in.kind == 'u' || in.kind == 'x') && (out.conflict || out.unknown) {
		holds = append(holds, before)
	}
	if in.kind != 'g' { // the assumption is forgotten where nothing was written
		for i := range holds {
			if holds[i].etag == assumed && holds[i].value == before.value {
				holds[i].etag = anyETag
			}
		}
	}
	return holds
}

// CheckOutage calls the function kill to stop the only server of a store, and then the function run to start it again.
// It checks that errors during the outage have the right code, and that the error text of a read contains message.
func CheckOutage(t *testing.T, store state.Store, kill, run func(), message string) {
	t.Helper()
	ctx := t.Context()
	testutil.Must(t, Set(ctx, store, Put("a||k", "1")))
	kill()
	for range 2 {
		err := Set(ctx, store, Put("a||k", "1"))
		if !fault.Is(err, fault.Unavailable) && !fault.Is(err, fault.Indeterminate) {
			t.Errorf("a write without a server: %v with code %q", err, fault.CodeOf(err))
		}
	}
	_, err := Get(ctx, store, "a||k")
	WantFault(t, err, fault.Unavailable, message)
	run()
	testutil.Eventually(t, func() error { return Set(ctx, store, Put("a||k", "2")) })
	WantValue(t, store, "a||k", "2")
}
