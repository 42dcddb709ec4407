package api

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/internal/fault"
)

// EventReceiver is the application as a receiver of events. Implementations are safe for
// concurrent use. path is without a slash in front.
type EventReceiver interface {
	// Healthy reports whether the application takes calls, and why not.
	Healthy() (bool, string)
	// Takes asks whether the application wants the events of a binding.
	Takes(ctx context.Context, binding, path string) (bool, error)
	// Take delivers an event and waits for the answer. Without an error the application
	// has handled it.
	Take(ctx context.Context, binding, path string, e bindings.Event) ([]byte, error)
}

// InputsConfig is what Inputs are made of.
type InputsConfig struct {
	App      App
	Receiver EventReceiver
	Bindings []*bindings.Instance // of which those that receive are started
	// Retry carries out attempt as often as the policy for the binding says, and returns
	// the last error; nil = once.
	Retry  func(ctx context.Context, binding string, attempt func(context.Context) error) error
	Logger *slog.Logger
}

// InputState is how far the input side of a binding is.
type InputState uint8

// The states.
const (
	InputWaiting InputState = iota // for the application
	InputUnwanted
	InputRunning
	InputFailed
)

// InputStatus is the state of one binding.
type InputStatus struct {
	Binding string
	State   InputState
	Reason  string // why it does not run; may be empty
}

// Inputs hands the events of input bindings to one application. It is safe for concurrent
// use.
type Inputs struct {
	config InputsConfig

	mu       sync.Mutex
	stopping bool
	statuses []InputStatus // of the bindings that receive, in their order
}

// NewInputs makes the service; nothing is received before Run.
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

// Statuses tells how far every binding is.
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

// Stop makes every delivery from now on fail, so that sources keep their events for other
// nodes. It does not wait for those under way.
func (in *Inputs) Stop() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.stopping = true
}

// The pauses of Run.
const (
	healthPause = 200 * time.Millisecond // between looks at the application's health
	minPause    = time.Second            // before a source that failed to start is tried again; doubles
	maxPause    = time.Minute
)

// Run waits for the application and starts the bindings it wants, all beside each other,
// until every one runs or is not wanted, or ctx ends. A source that cannot be started is
// tried again.
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
			log.Info("the application does not take the events of this binding", "path", "/"+b.Path())
			in.note(i, InputUnwanted, "the application answered that it does not take events at /"+b.Path())
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
		log.Warn("the binding does not receive; it is tried again", "after", wait, "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// wanted asks the application, unless the component says that the binding receives.
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

// sink hands the events of one binding to the application.
type sink struct {
	inputs  *Inputs
	binding *bindings.Instance
}

func (s *sink) unready() string {
	s.inputs.mu.Lock()
	stopping := s.inputs.stopping
	s.inputs.mu.Unlock()
	if stopping {
		return "the node is stopping"
	}
	if ok, why := s.inputs.config.Receiver.Healthy(); !ok {
		return "the application takes no events now: " + why
	}
	return ""
}

// Ready reports whether the application takes events now.
func (s *sink) Ready() bool { return s.unready() == "" }

// Deliver hands an event to the application, again as the policy says.
func (s *sink) Deliver(ctx context.Context, e bindings.Event) (answer []byte, err error) {
	once := func(ctx context.Context) error {
		if why := s.unready(); why != "" {
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
