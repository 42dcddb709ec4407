package pluggable

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	components "github.com/dapr/dapr/pkg/proto/components/v1"

	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/internal/fault"
)

const (
	maxEvents = 16                     // in progress; the process waits with further ones
	ackTime   = 30 * time.Second       // until a process that reads no acknowledgements loses its stream
	readyTick = 200 * time.Millisecond // between checks of the application
)

// input is the input side of a binding. It is safe for concurrent use.
type input struct {
	link  *link
	life  context.Context // of deliveries and streams
	end   context.CancelFunc
	slots chan struct{} // holds a value for each event in progress

	reading sync.WaitGroup // the goroutine of the stream
	mu      sync.Mutex     // guards the fields below
	started bool
	closing chan struct{} // closed when no further event is delivered
	closed  bool
	events  sync.WaitGroup // in progress; none begins after closed
}

func newInput(l *link) *input {
	in := &input{link: l, slots: make(chan struct{}, maxEvents), closing: make(chan struct{})}
	in.life, in.end = context.WithCancel(context.Background())
	return in
}

// Start implements bindings.Input. It opens the stream of events, which is opened again whenever it ends.
func (in *input) Start(ctx context.Context, sink bindings.Sink) error {
	in.mu.Lock()
	if in.started || in.closed {
		in.mu.Unlock()
		return fault.New(fault.Internal, "pluggable.Start", "the input was started already, or is closed")
	}
	in.started = true
	in.mu.Unlock()
	first, err := in.open(ctx)
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case err != nil:
		in.started = false
	case in.closed:
		first.close()
		err = errClosed("pluggable.Start")
	default:
		in.reading.Go(func() { in.run(first, sink) })
	}
	return err
}

// stream is one stream of events.
type stream struct {
	components.InputBinding_ReadClient
	session *session
	cancel  context.CancelFunc

	sending sync.Mutex // held while an acknowledgement is sent
	mu      sync.Mutex // guards pending
	pending map[string]bool
}

// close ends the stream.
func (s *stream) close() {
	s.cancel()
	s.session.leave()
}

// open opens a stream. ctx applies only until it is open.
func (in *input) open(ctx context.Context) (*stream, error) {
	session, err := in.link.enter(ctx)
	if err != nil {
		return nil, err
	}
	life, cancel := context.WithCancel(in.link.outgoing(in.life))
	late := context.AfterFunc(ctx, cancel)
	client, err := components.NewInputBindingClient(session.conn).Read(life)
	if err == nil && !late() {
		err = ctx.Err()
	}
	if err != nil {
		late()
		cancel()
		session.leave()
		return nil, in.link.fault("pluggable.Read", "", &failure{err: err, ended: ctx.Err()}, reading)
	}
	return &stream{InputBinding_ReadClient: client, session: session, cancel: cancel, pending: map[string]bool{}}, nil
}

// run receives events until close. A stream that ends is replaced after a pause, which grows while streams bring no
// events.
func (in *input) run(s *stream, sink bindings.Sink) {
	log := in.link.options.Logger
	pause := minPause
	for down := false; ; {
		if s != nil {
			if down {
				log.Info("events are received again")
			}
			some, err := in.receive(s, sink)
			s.close()
			if in.isClosing() {
				return
			}
			if some {
				pause = minPause
			}
			log.Warn("the stream of events has ended; it is opened again", "after", pause, "error", err)
			down = true
		}
		select {
		case <-in.closing:
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, maxPause)
		ctx, cancel := context.WithTimeout(in.life, openTime)
		var err error
		s, err = in.open(ctx)
		cancel()
		if err != nil {
			log.Debug("the stream of events cannot be opened", "error", err)
			s = nil
		}
	}
}

func (in *input) isClosing() bool {
	select {
	case <-in.closing:
		return true
	default:
		return false
	}
}

// receive delivers the events of a stream until it ends. It reports whether there were any.
func (in *input) receive(s *stream, sink bindings.Sink) (some bool, err error) {
	for {
		if !in.await(s, sink) {
			return some, s.Context().Err()
		}
		event, err := s.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return some, fault.New(fault.Unavailable, "pluggable.Read", in.link.who()+" ended the stream")
		case err != nil:
			return some, in.link.fault("pluggable.Read", "", &failure{err: err, begun: true}, reading)
		}
		some = true
		select {
		case in.slots <- struct{}{}:
		case <-s.Context().Done():
			return some, s.Context().Err()
		}
		if !in.begin(s, event.GetMessageId()) {
			<-in.slots
			continue
		}
		go in.deliver(s, sink, event)
	}
}

// await waits until the application takes events. It returns false if the stream has ended.
func (in *input) await(s *stream, sink bindings.Sink) bool {
	for !sink.Ready() {
		select {
		case <-s.Context().Done():
			return false
		case <-time.After(readyTick):
		}
	}
	return true
}

// begin counts an event. It returns false if the event must not be delivered: the input is closing, or an event with
// the same id is in progress, so that an acknowledgement could mean either.
func (in *input) begin(s *stream, id string) bool {
	s.mu.Lock()
	twice := id != "" && s.pending[id]
	s.mu.Unlock()
	if twice {
		in.link.options.Logger.Warn("an event is dropped: another one with the same id is in progress")
		return false
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return false
	}
	in.events.Add(1)
	s.mu.Lock()
	s.pending[id] = true
	s.mu.Unlock()
	return true
}

// deliver delivers one event and acknowledges it. The delivery goes on if the stream ends.
func (in *input) deliver(s *stream, sink bindings.Sink, event *components.ReadResponse) {
	defer in.events.Done()
	defer func() { <-in.slots }()
	answer, err := sink.Deliver(in.life, bindings.Event{Data: event.GetData(), Metadata: event.GetMetadata()})
	ack := &components.ReadRequest{MessageId: event.GetMessageId(), ResponseData: answer}
	if err != nil {
		ack.ResponseData, ack.ResponseError = nil, &components.AckResponseError{Message: fault.Text(err)}
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	s.mu.Lock()
	delete(s.pending, event.GetMessageId())
	s.mu.Unlock()
	stuck := time.AfterFunc(ackTime, s.cancel)
	defer stuck.Stop()
	_ = s.Send(ack) // if it fails, the stream has ended, and the process delivers the event again
}

// close stops the input. Events in progress may end and be acknowledged until ctx ends.
func (in *input) close(ctx context.Context) error {
	in.mu.Lock()
	if !in.closed {
		in.closed = true
		close(in.closing)
	}
	in.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		in.events.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	in.end()
	<-ended
	in.reading.Wait()
	in.link.close()
	return nil
}
