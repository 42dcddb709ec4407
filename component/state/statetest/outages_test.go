package statetest

import (
	"math"
	"testing"

	"github.com/anishathalye/porcupine"
)

// TestOutageModel_FindsWhatMustNotHappen checks short histories of one key.
func TestOutageModel_FindsWhatMustNotHappen(t *testing.T) {
	type calls = []porcupine.Operation
	answer := func(value, etag string) outcome { return outcome{output: output{value: value, etag: etag}} }
	conflict, unknown := outcome{output: output{conflict: true}}, outcome{unknown: true}
	call := func(kind byte, value, etag string, out outcome) porcupine.Operation {
		return porcupine.Operation{Input: input{key: "k", kind: kind, value: value, etag: etag}, Output: out}
	}
	set := func(value, etag string) porcupine.Operation { return call('s', value, "", answer("", etag)) }
	get := func(value, etag string) porcupine.Operation { return call('g', "", "", answer(value, etag)) }
	for name, c := range map[string]struct {
		calls []porcupine.Operation
		want  bool
	}{
		"a write is read":                {calls{set("a", "1"), get("a", "1")}, true},
		"an acknowledged write is lost":  {calls{set("a", "1"), get("", "")}, false},
		"an older value comes back":      {calls{set("a", "1"), set("b", "2"), get("a", "1")}, false},
		"an unknown write was done":      {calls{call('s', "a", "", unknown), get("a", "1")}, true},
		"an unknown write was not done":  {calls{call('s', "a", "", unknown), get("", "")}, true},
		"an unknown write is done later": {calls{call('s', "a", "", unknown), get("", ""), get("a", "1")}, true},
		"an unknown write is undone":     {calls{call('s', "a", "", unknown), get("a", "1"), get("", "")}, false},
		"an unknown write is done twice": {calls{call('s', "a", "", unknown), get("a", "1"), set("b", "2"),
			get("a", "1")}, false},
		"a refused write was done": {calls{set("a", "1"), get("b", "2")}, false},
		"two updates from one ETag": {calls{set("a", "1"), call('u', "b", "1", answer("", "2")),
			call('u', "c", "1", answer("", "3"))}, false},
		"an update after an unknown one": {calls{set("a", "1"), call('u', "b", "1", unknown),
			call('u', "c", "1", answer("", "3")), get("c", "3")}, true},
		"a conflict after an unknown update": {calls{set("a", "1"), call('u', "b", "1", unknown),
			call('u', "c", "1", conflict), get("b", "2")}, true},
		"a conflict for no reason":        {calls{set("a", "1"), call('u', "b", "1", conflict)}, false},
		"an ETag changes without a write": {calls{call('s', "a", "", unknown), get("a", "1"), get("a", "2")}, false},
		"a create where a value is": {calls{call('s', "a", "", unknown), get("a", "1"),
			call('c', "b", "", answer("", "2"))}, false},
		"a delete after an unknown write": {calls{call('s', "a", "", unknown),
			call('d', "", "", outcome{}), get("", "")}, true},
	} {
		for i := range c.calls {
			c.calls[i].Call, c.calls[i].Return = int64(2*i), int64(2*i+1)
			if c.calls[i].Output.(outcome).unknown {
				c.calls[i].Return = math.MaxInt64
			}
		}
		if got := porcupine.CheckOperations(outageModel(), c.calls); got != c.want {
			t.Errorf("%s: allowed is %v, want %v", name, got, c.want)
		}
	}
}
