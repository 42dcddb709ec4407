package inputs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/internal/appchannel"
	"github.com/quorate/quorate/internal/fault"
)

// Applications are the applications of this node that are called.
type Applications interface {
	// Callee returns the name under which an application is called.
	Callee(id string) api.App
	// Channel returns the channel to an application, or nil if it is not called.
	Channel(id string) *appchannel.Channel
	// Inbound returns the policy for the events of a binding; nil = none.
	Inbound(binding string) *resiliency.Policy
}

// Runner delivers the events of input bindings to the applications. It is safe for concurrent use.
type Runner struct {
	bindings []*bindings.Instance
	inputs   []*api.Inputs
	cancel   context.CancelFunc
	running  sync.WaitGroup
}

// receiver is an application as a receiver of events.
type receiver struct{ *appchannel.Channel }

// Take implements api.EventReceiver.
func (r receiver) Take(ctx context.Context, binding, path string, e bindings.Event) ([]byte, error) {
	return r.Channel.Take(ctx, binding, path, e.Data, e.Metadata)
}

// Open starts to receive events for the applications with the given ids.
func Open(all []*bindings.Instance, ids []string, apps Applications, log *slog.Logger) (*Runner, error) {
	owned, err := owners(all, ids, apps, log)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &Runner{bindings: all, cancel: cancel}
	for id, mine := range owned {
		in := api.NewInputs(api.InputsConfig{
			App: apps.Callee(id), Receiver: receiver{apps.Channel(id)}, Bindings: mine,
			Logger: log.With("app_id", id),
			Retry: func(ctx context.Context, binding string, attempt func(context.Context) error) error {
				return apps.Inbound(binding).Repeat(ctx, attempt)
			},
		})
		r.inputs = append(r.inputs, in)
		r.running.Go(func() { in.Run(ctx) })
	}
	return r, nil
}

// Close stops receiving. It waits until events in progress are handled or ctx ends.
func (r *Runner) Close(ctx context.Context) error {
	for _, in := range r.inputs {
		in.Stop()
	}
	r.cancel()
	r.running.Wait()
	var errs []error
	for _, b := range r.bindings {
		if b.Receives() {
			errs = append(errs, b.Close(ctx))
		}
	}
	return errors.Join(errs...)
}

// owners returns, for each application, the bindings whose events it gets. The scopes of a binding must include the
// application, and the application must have a channel on this node. owners returns an error if several
// applications could get the events of one binding.
func owners(all []*bindings.Instance, ids []string, apps Applications,
	log *slog.Logger) (map[string][]*bindings.Instance, error) {
	owned := map[string][]*bindings.Instance{}
	for _, b := range all {
		if !b.Receives() {
			continue
		}
		var candidates []string
		for _, id := range ids {
			if apps.Channel(id) != nil && b.VisibleTo(id) {
				candidates = append(candidates, id)
			}
		}
		switch len(candidates) {
		case 0:
			if b.Direction.Input || !b.Sends() {
				log.Warn("no application gets the events of a binding: no application of this node has a port "+
					"(--app-port)", "binding", b.Name)
			}
		case 1:
			owned[candidates[0]] = append(owned[candidates[0]], b)
		default:
			return nil, &fault.Error{Code: fault.Invalid, Op: "node.Open", Key: b.Name,
				Msg: fmt.Sprintf("the events of binding %s could go to the applications %s", b.Name,
					strings.Join(candidates, " and ")),
				Hint: "name one of them in the component's scopes"}
		}
	}
	return owned, nil
}

// Issues returns an issue for each source that could not be started.
func (r *Runner) Issues() (out []api.Issue) {
	for _, in := range r.inputs {
		for _, s := range in.Statuses() {
			if s.State == api.InputFailed {
				out = append(out, api.Issue{About: "binding " + s.Binding, Reason: "it does not receive: " +
					s.Reason})
			}
		}
	}
	return out
}
