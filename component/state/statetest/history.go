package statetest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

func historyCases() []testCase {
	return []testCase{{"ConcurrentStrongCallsAreLinearizable", linearizable}}
}

// input is one call on one key, in the model of a register with ETags.
type input struct {
	key   string
	kind  byte // 'g' get, 's' set, 'c' create, 'u' update with an ETag, 'd' delete, 'x' delete with an ETag
	value string
	etag  string
}

// output is its answer.
type output struct {
	conflict bool
	value    string
	etag     string
}

// register is the state of one key. An empty ETag means that it is absent.
type register struct {
	value string
	etag  string
}

// linearizable runs concurrent clients on a few keys and records their calls. The test fails unless the calls are
// linearizable: some sequential order of them explains all answers.
func linearizable(s *suite) {
	const clients, calls, keys = 6, 40, 3
	m := model()
	if s.options.UnknownETags {
		m = outageModel()
	}
	for round := range s.options.Rounds {
		h := history{suite: s, ctx: s.ctx(), begin: time.Now()}
		var wg sync.WaitGroup
		for client := range clients {
			source := rand.New(rand.NewPCG(uint64(round), uint64(client)))
			wg.Go(func() { h.client(client, calls, keys, round, source) })
		}
		wg.Wait()
		if s.Failed() {
			return
		}
		result := porcupine.CheckOperationsTimeout(m, h.operations, time.Minute)
		if result != porcupine.Ok {
			s.Fatalf("round %d: no order of the %d calls explains their answers: %s\n%+v", round, len(h.operations),
				result, h.operations)
		}
	}
}

// history is a recording. Its clients share the list of operations.
type history struct {
	suite *suite
	ctx   context.Context
	begin time.Time

	mu         sync.Mutex // guards operations
	operations []porcupine.Operation
}

func (h *history) client(id, calls, keys, round int, source *rand.Rand) {
	etags := make([]string, keys)
	for i := range calls {
		k := source.IntN(keys)
		in := input{
			key: h.suite.key(fmt.Sprintf("round %d key %d", round, k)), kind: "ggsscuuudx"[source.IntN(10)],
			value: fmt.Sprintf("%d-%d", id, i), etag: etags[k],
		}
		if in.etag == "" && (in.kind == 'u' || in.kind == 'x') {
			in.kind = 'g'
		}
		call := time.Since(h.begin)
		out := h.call(in)
		back := time.Since(h.begin)
		if out.etag != "" && out.etag != anyETag {
			etags[k] = out.etag
		}
		var answer any = out
		if h.suite.options.UnknownETags {
			answer = outcome{output: out}
		}
		h.mu.Lock()
		h.operations = append(h.operations, porcupine.Operation{
			ClientId: id, Input: in, Output: answer, Call: int64(call), Return: int64(back),
		})
		h.mu.Unlock()
	}
}

func (h *history) call(in input) output {
	w := state.Write{Key: in.key, Value: []byte(in.value)}
	switch in.kind {
	case 'g':
		item, err := h.suite.store.Get(h.ctx, state.GetRequest{Key: in.key, ReadOptions: strong()})
		if err != nil {
			h.suite.Errorf("Get: %v", err)
		}
		return output{value: string(item.Value), etag: item.ETag}
	case 'd', 'x':
		r := state.DeleteRequest{Key: in.key, Consistency: state.Strong}
		if in.kind == 'x' {
			r.ETag = in.etag
		}
		_, err := h.suite.store.Delete(h.ctx, r)
		return h.judge(err)
	case 'c':
		w.Concurrency = state.FirstWrite
	case 'u':
		w.ETag = in.etag
	}
	written, err := h.suite.store.Set(h.ctx, state.SetRequest{Items: []state.Write{w}, Consistency: state.Strong})
	out := h.judge(err)
	switch {
	case err != nil:
	case h.suite.options.UnknownETags:
		out.etag = anyETag
	case len(written.ETags) == 1:
		out.etag = written.ETags[0]
	}
	return out
}

// judge accepts success and conflicts. No other error may happen in a store without faults.
func (h *history) judge(err error) output {
	conflict := fault.Is(err, fault.Conflict)
	if err != nil && !conflict {
		h.suite.Errorf("a call failed: %v", err)
	}
	return output{conflict: conflict}
}

// model returns the sequential specification: independent registers.
func model() porcupine.Model {
	return porcupine.Model{
		Init:      func() any { return register{} },
		Partition: byKey,
		Step: func(before, in, out any) (bool, any) {
			return step(before.(register), in.(input), out.(output))
		},
	}
}

func step(before register, in input, out output) (bool, register) {
	allowed := true
	after := register{value: in.value, etag: out.etag}
	switch in.kind {
	case 'g':
		return out == output{value: before.value, etag: before.etag}, before
	case 'd':
		after = register{}
	case 'c':
		allowed = before.etag == ""
	case 'u':
		allowed = before.etag == in.etag
	case 'x':
		allowed, after = before.etag == in.etag, register{}
	}
	if out.conflict {
		return !allowed, before
	}
	deletes := in.kind == 'd' || in.kind == 'x'
	return allowed && (deletes || out.etag != ""), after
}

func byKey(all []porcupine.Operation) [][]porcupine.Operation {
	parts := map[string][]porcupine.Operation{}
	for _, op := range all {
		key := op.Input.(input).key
		parts[key] = append(parts[key], op)
	}
	return slices.Collect(maps.Values(parts))
}
