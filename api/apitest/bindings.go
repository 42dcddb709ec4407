package apitest

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/internal/fault"
)

// outside is a source of bindings with one output binding, "events". The binding answers with the data and the metadata
// of the request. Its operation "send" has no answer, and its operation "fail" returns an error.
type outside struct{}

func (outside) Binding(name string) (*bindings.Instance, bool) {
	return &bindings.Instance{Name: "events", Binding: bindings.Binding{Output: outside{}}}, name == "events"
}

func (outside) Loaded() bool { return true }

func (outside) Operations() []string { return []string{"create", "send", "fail"} }

func (outside) Invoke(_ context.Context, r bindings.Request) (*bindings.Response, error) {
	text := fmt.Sprintf("%q", string(r.Data))
	for _, name := range slices.Sorted(maps.Keys(r.Metadata)) {
		text += " " + name + "=" + r.Metadata[name]
	}
	answer := &bindings.Response{Data: fmt.Appendf(nil, "%q", text),
		Metadata: map[string]string{"statusCode": "502", "odd name": "left out", "odd": "left\nout"}}
	switch r.Operation {
	case "send":
		return nil, nil
	case "fail":
		return answer, fault.New(fault.Unavailable, "outside", "the system is down")
	}
	return answer, nil
}
