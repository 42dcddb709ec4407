package api

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/internal/fault"
)

// EventReceiver is an application that receives the events of input bindings. The paths that its methods receive have
// no leading slash. Implementations are safe for concurrent use.
type EventReceiver interface {
	// Healthy reports whether the application accepts calls, and otherwise why not.
	Healthy() (bool, string)
	// Takes asks the application whether it wants the events of a binding.
	Takes(ctx context.Context, binding, path string) (bool, error)
	// Take delivers an event and waits for the answer. A nil error means that the application has handled the event.
	Take(ctx context.Context, binding, path string, e bindings.Event) ([]byte, error)
}

// InputsConfig is the configuration of Inputs.
type InputsConfig struct {
	App      App
	Receiver EventReceiver
	Bindings []*bindings.Instance // only input bindings are started
	// Retry executes attempt as often as the policy of the binding allows, and returns the last error. nil = once.
	Retry  func(ctx context.Context, binding string, attempt func(context.Context) error) error
	Logger *slog.Logger
	// Observer is notified after each delivery of an event, also after a failed one. nil = none.
	Observer Observer
}

// InputState is the state of an input binding.
type InputState uint8

// The states.
const (
	InputWaiting InputState = iota // waits for the application
	InputUnwanted
	InputRunning
	InputFailed
)

// InputStatus is the state of one binding.
type InputStatus struct {
	Binding string
	State   InputState
	Reason  string // why the binding does not run; may be empty
}

// Inputs delivers the events of input bindings to one application. It is safe for concurrent use.
type Inputs struct {
	config InputsConfig

	mu       sync.Mutex
	stopping bool
	statuses []InputStatus // states of the input bindings, in the order of config.Bindings
}

// NewInputs returns the service. No binding starts before Run.
func NewInputs(c InputsConfig) *Inputs {
	in := &Inputs{config: c}
	var receiving []*bindings.Instance
	for _, b := range c.Bindings {
		if b.Receives() && b.VisibleTo(c.App.ID) {
			receiving = append(receiving, b)
			in.statuses = append(in.statuses, InputStatus{Binding: b.Name, Reason: "waiting for the application"})
		}
	}
	in.config.Bindings = receiving
	return in
}

// Statuses returns the state of every input binding.
func (in *Inputs) Statuses() []InputStatus {
	in.mu.Lock()
	defer in.mu.Unlock()
	return append([]InputStatus(nil), in.statuses...)
}

func (in *Inputs) note(i int, s InputState, reason string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.statuses[i].State, in.statuses[i].Reason = s, reason
}

// Stop makes further deliveries fail, because the node is stopping. The event sources keep the undelivered events for
// other nodes. Events that this node has already claimed are still delivered, because no other node can deliver them.
// Stop does not wait for deliveries in progress.
func (in *Inputs) Stop() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.stopping = true
}

// The pauses of Run.
const (
	healthPause = 200 * time.Millisecond // between checks of the application's health
	minPause    = time.Second            // before the first retry of a failed start; each retry doubles the pause
	maxPause    = time.Minute
)

// Run starts the input bindings whose events the application wants. It waits until the application is healthy, starts
// the bindings concurrently, and retries each start that fails. Run returns when every wanted binding has started, or
// when ctx ends.
func (in *Inputs) Run(ctx context.Context) {
	var all sync.WaitGroup
	for i := range in.config.Bindings {
		all.Go(func() { in.start(ctx, i) })
	}
	all.Wait()
}

func (in *Inputs) start(ctx context.Context, i int) {
	b := in.config.Bindings[i]
	log := in.config.Logger.With("binding", b.Name, "type", b.Type)
	for wait := minPause; ; wait = min(2*wait, maxPause) {
		if !in.awaitHealth(ctx) {
			return
		}
		wanted, err := in.wanted(ctx, b)
		if err == nil && !wanted {
			log.Info("the application does not want the events of this binding", "path", "/"+b.Path())
			in.note(i, InputUnwanted, "the application answered that it does not want events at /"+b.Path())
			return
		}
		if err == nil {
			if err = b.Input.Start(ctx, &sink{inputs: in, binding: b}); err == nil {
				log.Info("receiving events", "path", "/"+b.Path())
				in.note(i, InputRunning, "")
				return
			}
		}
		if ctx.Err() != nil {
			return
		}
		in.note(i, InputFailed, fault.Text(err))
		log.Warn("the input binding could not be started; the start is retried", "after", wait, "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// wanted reports whether the application wants the events of a binding. If the component declares the direction input,
// the result is true. Otherwise wanted sends a request to the application to find out.
func (in *Inputs) wanted(ctx context.Context, b *bindings.Instance) (bool, error) {
	if b.Direction.Input {
		return true, nil
	}
	return in.config.Receiver.Takes(ctx, b.Name, b.Path())
}

// awaitHealth reports whether the application became healthy before ctx ended.
func (in *Inputs) awaitHealth(ctx context.Context) bool {
	tick := time.NewTicker(healthPause)
	defer tick.Stop()
	for {
		if ok, _ := in.config.Receiver.Healthy(); ok {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}

// sink delivers the events of one binding to the application.
type sink struct {
	inputs  *Inputs
	binding *bindings.Instance
}

// unready returns the reason why an event cannot be delivered now, or "" if it can. claimed reports whether this node
// has claimed the event. While the node is stopping, only claimed events are delivered.
func (s *sink) unready(claimed bool) string {
	s.inputs.mu.Lock()
	stopping := s.inputs.stopping
	s.inputs.mu.Unlock()
	if stopping && !claimed {
		return "the node is stopping"
	}
	if ok, why := s.inputs.config.Receiver.Healthy(); !ok {
		return "the application takes no events now: " + why
	}
	return ""
}

// Ready reports whether the application accepts events now.
func (s *sink) Ready() bool { return s.unready(false) == "" }

// Deliver delivers an event to the application, with the retries of the policy.
func (s *sink) Deliver(ctx context.Context, e bindings.Event) (answer []byte, err error) {
	seen := observed{s.inputs.config.Observer}
	start := seen.begin()
	defer func() { seen.event(s.binding.Name, start, err) }()
	once := func(ctx context.Context) error {
		if why := s.unready(e.Claimed); why != "" {
			return fault.New(fault.Unavailable, "api.Deliver", why)
		}
		answer, err = s.inputs.config.Receiver.Take(ctx, s.binding.Name, s.binding.Path(), e)
		return err
	}
	if retry := s.inputs.config.Retry; retry != nil {
		err = retry(ctx, s.binding.Name, once)
		return answer, err
	}
	err = once(ctx)
	return answer, err
}
