package inputs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/internal/appchannel"
	"github.com/quorate/quorate/internal/fault"
)

// Applications are the applications that this node calls.
type Applications interface {
	// Callee returns the name under which an application is called.
	Callee(id string) api.App
	// Channel returns the channel to an application, or nil if the node does not call the application.
	Channel(id string) *appchannel.Channel
	// Inbound returns the policy for the events of a binding; nil = none.
	Inbound(binding string) *resiliency.Policy
}

// Observers maps the id of an application to the observer of the events that the application receives. An application
// may have no observer.
type Observers map[string]api.Observer

// Runner delivers the events of input bindings to the applications. It is safe for concurrent use.
type Runner struct {
	ids  []string
	apps Applications
	seen Observers
	log  *slog.Logger

	mu      sync.Mutex // guards running; held during the whole of Update and Close
	running []*delivery
}

// delivery is one input binding whose events an application gets.
type delivery struct {
	binding *bindings.Instance
	app     string
	inputs  *api.Inputs
	cancel  context.CancelFunc
	done    sync.WaitGroup
}

// stop ends the delivery. It waits until events in progress are handled or ctx ends.
func (d *delivery) stop(ctx context.Context) error {
	d.inputs.Stop()
	d.cancel()
	d.done.Wait()
	return d.binding.Close(ctx)
}

// receiver is an application as a receiver of events.
type receiver struct{ *appchannel.Channel }

// Take implements api.EventReceiver.
func (r receiver) Take(ctx context.Context, binding, path string, e bindings.Event) ([]byte, error) {
	return r.Channel.Take(ctx, binding, path, e.Data, e.Metadata)
}

// Open starts to receive events for the applications with the given ids.
func Open(all []*bindings.Instance, ids []string, apps Applications, seen Observers,
	log *slog.Logger) (*Runner, error) {
	r := &Runner{ids: ids, apps: apps, seen: seen, log: log}
	return r, r.Update(context.Background(), all)
}

// Update replaces the bindings. It ends the deliveries of removed bindings before it starts new bindings, because the
// new ones may listen on the same ports. If a delivery does not end in time, Update starts the new bindings anyway and
// returns an error.
//
// If the new bindings are invalid, Update returns an error and changes nothing.
func (r *Runner) Update(ctx context.Context, all []*bindings.Instance) error {
	owned, err := owners(all, r.ids, r.apps, r.log)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var kept []*delivery
	var errs []error
	for _, d := range r.running {
		if slices.Contains(owned[d.app], d.binding) {
			kept = append(kept, d)
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, stopTime)
		errs = append(errs, d.stop(bounded))
		cancel()
	}
	r.running = kept
	for id, mine := range owned {
		for _, b := range mine {
			if !slices.ContainsFunc(kept, func(d *delivery) bool { return d.binding == b }) {
				r.running = append(r.running, r.start(id, b))
			}
		}
	}
	return errors.Join(errs...)
}

// Check returns the error that Update would return because of invalid bindings.
func (r *Runner) Check(all []*bindings.Instance) error {
	_, err := owners(all, r.ids, r.apps, slog.New(slog.DiscardHandler))
	return err
}

// stopTime is how long Update waits for the end of one delivery.
const stopTime = 5 * time.Second

func (r *Runner) start(id string, b *bindings.Instance) *delivery {
	ctx, cancel := context.WithCancel(context.Background())
	d := &delivery{binding: b, app: id, cancel: cancel, inputs: api.NewInputs(api.InputsConfig{
		App: r.apps.Callee(id), Receiver: receiver{r.apps.Channel(id)}, Bindings: []*bindings.Instance{b},
		Logger: r.log.With("app_id", id), Observer: r.seen[id],
		Retry: func(ctx context.Context, binding string, attempt func(context.Context) error) error {
			return r.apps.Inbound(binding).Repeat(ctx, attempt)
		},
	})}
	d.done.Go(func() { d.inputs.Run(ctx) })
	return d
}

// Close stops receiving. It waits until events in progress are handled or ctx ends.
func (r *Runner) Close(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.running {
		d.inputs.Stop() // all at once, then wait for each
		d.cancel()
	}
	var errs []error
	for _, d := range r.running {
		errs = append(errs, d.stop(ctx))
	}
	r.running = nil
	return errors.Join(errs...)
}

// owners returns the input bindings of each application, by application id. A binding belongs to the application that
// its scopes permit and that has a channel on this node. If there are several such applications, owners returns
// fault.Invalid.
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

// Issues returns an issue for each binding that could not be started.
func (r *Runner) Issues() (out []schema.Issue) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.running {
		for _, s := range d.inputs.Statuses() {
			if s.State == api.InputFailed {
				out = append(out, schema.Issue{About: "binding " + s.Binding, Reason: "it does not receive: " +
					s.Reason})
			}
		}
	}
	return out
}
