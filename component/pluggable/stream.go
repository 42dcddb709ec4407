package pluggable

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/quorate/quorate/internal/fault"
)

const ackTime = 30 * time.Second // then a stream ends if its process reads no acknowledgements

// duplex is a gRPC stream on which the process sends T, and the node sends A.
type duplex[A, T any] interface {
	grpc.ClientStream
	Send(ack *A) error
	Recv() (*T, error)
}

// stream is a gRPC stream on which the process sends events or messages, and the node sends acknowledgements. It is
// safe for concurrent use.
type stream[A, T any] struct {
	duplex[A, T]
	session *session
	cancel  context.CancelFunc

	sending sync.Mutex // held while something is sent
	mu      sync.Mutex // guards pending
	pending map[string]bool
}

// close ends the stream.
func (s *stream[A, T]) close() {
	s.cancel()
	s.session.leave()
}

// closeSend closes the node's side of the stream. The process still receives everything that was sent before.
func (s *stream[A, T]) closeSend() {
	s.sending.Lock()
	defer s.sending.Unlock()
	_ = s.CloseSend() // fails if the stream has ended
}

// begin records that the event or message with the given id is in progress. It returns false if this id is already in
// progress, because the two acknowledgements could not be distinguished. An empty id is always accepted.
func (s *stream[A, T]) begin(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id != "" && s.pending[id] {
		return false
	}
	s.pending[id] = true
	return true
}

// acknowledge sends an acknowledgement for an id, and forgets the id, so that the process may use it again. An error
// means that the stream has ended.
func (s *stream[A, T]) acknowledge(id string, ack *A) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.mu.Lock()
	delete(s.pending, id)
	s.mu.Unlock()
	stuck := time.AfterFunc(ackTime, s.cancel)
	defer stuck.Stop()
	return s.Send(ack)
}

// consumer handles what streams deliver. Its methods are called by one goroutine at a time.
type consumer[A, T any] interface {
	// begin opens a stream. It also sends the first message if the process needs one.
	begin(ctx context.Context, conn grpc.ClientConnInterface) (duplex[A, T], error)
	// ready waits until something may be read from the stream. An error ends the stream.
	ready(s *stream[A, T]) error
	// accept handles an event or a message. An error ends the stream.
	accept(s *stream[A, T], one *T) error
	// ended is called when a stream has ended. It reports whether no further stream is needed.
	ended(s *stream[A, T]) bool
}

// reader reads streams, one after another.
type reader[A, T any] struct {
	consumer[A, T]
	link    *link
	op      string // operation in errors
	what    string // what the stream delivers, for logs
	log     *slog.Logger
	life    context.Context // context of streams
	closing <-chan struct{} // closed when no further stream is opened
}

// open opens a stream. When the stream is open, the end of ctx no longer affects it.
func (r *reader[A, T]) open(ctx context.Context) (*stream[A, T], error) {
	session, err := r.link.enter(ctx)
	if err != nil {
		return nil, err
	}
	life, cancel := context.WithCancel(r.link.outgoing(r.life))
	late := context.AfterFunc(ctx, cancel)
	client, err := r.begin(life, session.conn)
	if err == nil && !late() {
		err = ctx.Err()
	}
	if err != nil {
		late()
		cancel()
		session.leave()
		return nil, r.link.fault(r.op, "", &failure{err: err, ended: ctx.Err()}, reading)
	}
	return &stream[A, T]{duplex: client, session: session, cancel: cancel, pending: map[string]bool{}}, nil
}

// run reads streams one after another, beginning with s. Before it opens the next stream, it waits for minPause. Each
// further wait is twice as long, up to maxPause. After a stream on which something was accepted, the wait is minPause
// again.
func (r *reader[A, T]) run(s *stream[A, T]) {
	pause := minPause
	for down := false; ; {
		if s != nil {
			if down {
				r.log.Info(r.what + " are received again")
			}
			some, err := r.read(s)
			s.close()
			if r.ended(s) {
				return
			}
			if some {
				pause = minPause
			}
			r.log.Warn("the stream of "+r.what+" has ended; it is opened again", "after", pause, "error", err)
			down = true
		}
		select {
		case <-r.closing:
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, maxPause)
		ctx, cancel := context.WithTimeout(r.life, openTime)
		var err error
		s, err = r.open(ctx)
		cancel()
		if err != nil {
			r.log.Debug("the stream of "+r.what+" cannot be opened", "error", err)
			s = nil
		}
	}
}

// read reads a stream until it ends. It reports whether anything was accepted.
func (r *reader[A, T]) read(s *stream[A, T]) (some bool, err error) {
	for {
		if err := r.ready(s); err != nil {
			return some, err
		}
		one, err := s.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return some, fault.New(fault.Unavailable, r.op, r.link.who()+" ended the stream")
		case err != nil:
			return some, r.link.fault(r.op, "", &failure{err: err, sent: true, begun: true}, reading)
		}
		if err := r.accept(s, one); err != nil {
			return some, err
		}
		some = true
	}
}
