package pluggable

import (
	"context"
	"sync"
	"time"

	components "github.com/dapr/dapr/pkg/proto/components/v1"
	"google.golang.org/grpc"

	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/internal/fault"
)

const (
	maxEvents = 16                     // events in progress; the process must wait with further events
	readyTick = 200 * time.Millisecond // pause between checks whether the application is ready
)

// Streams of events.
type (
	eventStream = stream[components.ReadRequest, components.ReadResponse]
	eventDuplex = duplex[components.ReadRequest, components.ReadResponse]
	eventReader = reader[components.ReadRequest, components.ReadResponse]
)

// input is the input side of a binding. It receives events on a stream, and opens a new stream whenever the current one
// ends. It is safe for concurrent use.
type input struct {
	reader eventReader
	life   context.Context // context of deliveries and streams
	end    context.CancelFunc
	slots  chan struct{} // holds a value for each event in progress

	reading sync.WaitGroup // the goroutine of the stream
	mu      sync.Mutex     // guards the fields below
	sink    bindings.Sink  // nil = not started; constant while there is a stream
	closing chan struct{}  // closed when no further event is delivered
	closed  bool
	events  sync.WaitGroup // events in progress; no event begins after closed is set
}

func newInput(l *link) *input {
	in := &input{slots: make(chan struct{}, maxEvents), closing: make(chan struct{})}
	in.life, in.end = context.WithCancel(context.Background())
	in.reader = eventReader{consumer: in, link: l, op: "pluggable.Read", what: "events", log: l.options.Logger,
		life: in.life, closing: in.closing}
	return in
}

// Start implements bindings.Input. It opens the stream of events.
func (in *input) Start(ctx context.Context, sink bindings.Sink) error {
	in.mu.Lock()
	if in.sink != nil || in.closed {
		in.mu.Unlock()
		return fault.New(fault.Internal, "pluggable.Start", "the input was started already, or is closed")
	}
	in.sink = sink
	in.mu.Unlock()
	first, err := in.reader.open(ctx)
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case err != nil:
		in.sink = nil
	case in.closed:
		first.close()
		err = errClosed("pluggable.Start")
	default:
		in.reading.Go(func() { in.reader.run(first) })
	}
	return err
}

// begin implements consumer.
func (in *input) begin(ctx context.Context, conn grpc.ClientConnInterface) (eventDuplex, error) {
	return components.NewInputBindingClient(conn).Read(ctx)
}

// ready implements consumer. It waits until the application takes events.
func (in *input) ready(s *eventStream) error {
	for !in.sink.Ready() {
		select {
		case <-s.Context().Done():
			return s.Context().Err()
		case <-time.After(readyTick):
		}
	}
	return nil
}

// accept implements consumer. It starts the delivery of an event.
func (in *input) accept(s *eventStream, event *components.ReadResponse) error {
	select {
	case in.slots <- struct{}{}:
	case <-s.Context().Done():
		return s.Context().Err()
	}
	if !in.admit(s, event) {
		<-in.slots
	}
	return nil
}

// admit starts to deliver an event and returns true. If the input is closing, or if another event with the same id is
// in progress, admit returns false and does not deliver the event.
func (in *input) admit(s *eventStream, event *components.ReadResponse) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return false
	}
	if !s.begin(event.GetMessageId()) {
		in.reader.log.Warn("an event is dropped: another one with the same id is in progress")
		return false
	}
	in.events.Go(func() { in.deliver(s, event) })
	return true
}

// ended implements consumer.
func (in *input) ended(*eventStream) bool {
	select {
	case <-in.closing:
		return true
	default:
		return false
	}
}

// deliver delivers one event to the application, and sends the acknowledgement to the process. The delivery continues
// even if the stream has ended.
func (in *input) deliver(s *eventStream, event *components.ReadResponse) {
	defer func() { <-in.slots }()
	answer, err := in.sink.Deliver(in.life, bindings.Event{Data: event.GetData(), Metadata: event.GetMetadata()})
	ack := &components.ReadRequest{MessageId: event.GetMessageId(), ResponseData: answer}
	if err != nil {
		ack.ResponseData, ack.ResponseError = nil, &components.AckResponseError{Message: fault.Text(err)}
	}
	_ = s.acknowledge(ack.GetMessageId(), ack) // if it fails, the process delivers the event again
}

// close stops the input and closes the connection to the process. It waits until the events in progress are delivered
// and acknowledged. If ctx ends first, close cancels these deliveries.
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
	in.reader.link.close()
	return nil
}
