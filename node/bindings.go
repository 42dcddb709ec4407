package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/appchannel"
	"github.com/quorate/quorate/internal/fault"
)

// claimsStore is where claims are kept, beside the stores of components: none can have a
// name with a slash.
const claimsStore = "system/claims"

// claims lets one node of the cluster take what all of them see: the write that creates
// the key wins. A retry of it is recognised, so a conflict is another node's.
type claims struct{ n *Node }

// Claim implements bindings.Claims.
func (c claims) Claim(ctx context.Context, key string, life time.Duration) (bool, error) {
	store := c.n.host.Store(c.n.config.Namespace, claimsStore)
	_, err := store.Set(ctx, state.SetRequest{Consistency: state.Strong, Items: []state.Write{{
		Key: key, Value: []byte("1"), Concurrency: state.FirstWrite, TTL: state.TTL{Set: true, Seconds: int64(max(life/time.Second, 1))},
	}}})
	if fault.Is(err, fault.Conflict) {
		return false, nil
	}
	return err == nil, err
}

// Binding returns the binding of a name.
func (n *Node) Binding(name string) (*bindings.Instance, bool) {
	if s := n.set.Load(); s != nil {
		return s.Binding(name)
	}
	return nil, false
}

// receiver is an application as a receiver of events.
type receiver struct{ *appchannel.Channel }

// Take implements api.EventReceiver.
func (r receiver) Take(ctx context.Context, binding, path string, e bindings.Event) ([]byte, error) {
	return r.Channel.Take(ctx, binding, path, e.Data, e.Metadata)
}

// buildInputs begins to hand events of input bindings to the applications, the last thing
// of a start; a stop begins with ending it.
func (n *Node) buildInputs(context.Context) error {
	set := n.set.Load()
	if set == nil {
		return nil
	}
	all := set.Bindings()
	owners, err := n.eventOwners(all)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var inputs []*api.Inputs
	for id, mine := range owners {
		app := n.callee(id)
		in := api.NewInputs(api.InputsConfig{
			App: app, Receiver: receiver{n.calls.channels[app]}, Bindings: mine, Logger: n.log.With("app_id", id),
			Retry: func(ctx context.Context, binding string, attempt func(context.Context) error) error {
				return n.inbound[binding].Repeat(ctx, attempt)
			},
		})
		inputs = append(inputs, in)
		running.Go(func() { in.Run(ctx) })
	}
	n.inputs.Store(&inputs)
	return n.closers.Push("input bindings", func(closing context.Context) error {
		for _, in := range inputs {
			in.Stop()
		}
		cancel()
		running.Wait()
		var errs []error
		for _, b := range all {
			if b.Receives() {
				errs = append(errs, b.Close(closing))
			}
		}
		return errors.Join(errs...)
	})
}

// eventOwners finds the application that takes the events of each binding: the one in its
// scope that this node calls.
func (n *Node) eventOwners(all []*bindings.Instance) (map[string][]*bindings.Instance, error) {
	owners := map[string][]*bindings.Instance{}
	for _, b := range all {
		if !b.Receives() {
			continue
		}
		var ids []string
		for _, a := range n.apps() {
			if a.Port != 0 && b.VisibleTo(a.ID) {
				ids = append(ids, a.ID)
			}
		}
		switch len(ids) {
		case 0:
			if b.Direction.Input || !b.Sends() {
				n.log.Warn("nobody takes the events of a binding: no application of this node has a port (--app-port)", "binding", b.Name)
			}
		case 1:
			owners[ids[0]] = append(owners[ids[0]], b)
		default:
			return nil, &fault.Error{Code: fault.Invalid, Op: "node.Open", Key: b.Name,
				Msg:  fmt.Sprintf("the events of binding %s could go to the applications %s", b.Name, strings.Join(ids, " and ")),
				Hint: "name one of them in the component's scopes"}
		}
	}
	return owners, nil
}

// inputIssues says which sources could not be set up.
func (n *Node) inputIssues() (out []api.Issue) {
	inputs := n.inputs.Load()
	if inputs == nil {
		return nil
	}
	for _, in := range *inputs {
		for _, s := range in.Statuses() {
			if s.State == api.InputFailed {
				out = append(out, api.Issue{About: "binding " + s.Binding, Reason: "it does not receive: " + s.Reason})
			}
		}
	}
	return out
}

// boundPolicies are the policies of components in one direction.
func (n *Node) boundPolicies(documents []component.Resiliency, of func(component.ComponentTargets) component.ResiliencyTarget) map[string]*api.Policy {
	out := map[string]*api.Policy{}
	for _, d := range documents {
		made := policyMaker{doc: d}
		for name, targets := range d.Components {
			t := of(targets)
			out[name] = made.policy(t.Timeout, t.Retry, "")
		}
	}
	return out
}
