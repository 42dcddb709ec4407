package grpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/admission"
	"github.com/quorate/quorate/internal/fault"
)

// The bounds of incoming messages.
const (
	firstPiece   = 4 << 10   // size in bytes up to which a message reserves no memory
	waitingPiece = 64 << 10  // bytes of a message that may arrive before memory is reserved for it
	readPiece    = 256 << 10 // bytes that are read at once after memory is reserved
	maxWaiting   = 32 << 20  // maximum bytes of the messages of a server that arrive without a reservation
	openLimit    = 4 << 10   // maximum size in bytes of a message to a method that needs no token
)

// The memory reserved for a message of n bytes is costFixed + costCopies*n bytes. The three copies are the encoded
// message, the decoded message and the log entry.
const (
	costCopies = 3
	costFixed  = 4 << 10
)

// wire is a transport stream of grpc-go. It returns the bytes of a message as they arrive, whereas grpc.ServerStream
// returns only complete, decoded messages.
type wire interface {
	ReadMessageHeader(into []byte) error // fills into, or fails with io.EOF at the end of the stream
	RecvCompress() string
}

// receiver receives the messages of one call and holds the memory reserved for them.
type receiver struct {
	server  *Server
	arrival *arrival
	wire    wire
	single  bool  // the client sends exactly one message
	limit   int64 // maximum bytes of a message
	// lost is called for a message that exceeds a limit. It may read the message, but must not keep it. nil = no call.
	lost func(message io.Reader, why error)

	mu      sync.Mutex // guards the fields below; a proxied call receives and finishes in different goroutines
	share   admission.Share
	waiting int64 // bytes of this call that are counted in server.waiting
	ended   bool  // the call has ended and may not reserve more memory
}

// receiver returns the receiver of a call. It returns nil if the call did not arrive over the HTTP/2 transport of
// grpc-go, or if its context is not an arrival. single must be true if the call has exactly one request message.
func (s *Server) receiver(ctx context.Context, method string, single bool) *receiver {
	w, ok := grpc.ServerTransportStreamFromContext(ctx).(wire)
	a := arrivalOf(ctx)
	if !ok || a == nil {
		return nil
	}
	r := &receiver{server: s, arrival: a, wire: w, single: single, limit: s.limit, share: s.requests.Share()}
	if s.tokens.Required() && isOpen(method) {
		r.limit = min(r.limit, openLimit)
	}
	return r
}

// receive receives one message and decodes it into m. The memory of the message stays reserved until the next call of
// receive, release or finish.
func (r *receiver) receive(m any) error {
	r.release()
	var head [prefixSize]byte
	if err := r.read(head[:]); err != nil {
		if errors.Is(err, io.EOF) && r.single {
			return status.Error(codes.Internal,
				"cardinality violation: received no request message from non-client-streaming RPC")
		} else if errors.Is(err, io.ErrUnexpectedEOF) {
			return cutShort(err)
		}
		return err
	}
	size := int64(binary.BigEndian.Uint32(head[1:]))
	if size > r.limit {
		err := status.Errorf(codes.ResourceExhausted,
			"grpc: received message larger than max (%d vs. %d)", size, r.limit)
		if r.lost != nil {
			r.lost(r.unpacked(head[0], &oversized{r, size}), err)
		}
		return err
	}
	data, err := r.body(size)
	if err != nil {
		return err
	}
	if data, err = r.unpack(head[0], data); err == nil && r.single {
		err = r.end()
	}
	if err != nil {
		r.server.buffers.Put(data)
		return err
	}
	if f, ok := m.(*frame); ok {
		f.data = *data // forwarded without decoding
		return nil
	}
	defer r.server.buffers.Put(data)
	return r.decode(*data, m)
}

// release releases the memory reserved for the last message.
func (r *receiver) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unwaitLocked()
	r.share.Release()
}

// finish releases the reserved memory when the call ends. A receive that is still running in another goroutine can then
// no longer reserve memory.
func (r *receiver) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.unwaitLocked()
	r.share.Release()
}

func (r *receiver) unwaitLocked() {
	r.server.waiting.Add(-r.waiting)
	r.waiting = 0
}

// read fills b. It fails when the call ends.
func (r *receiver) read(b []byte) error { return r.wire.ReadMessageHeader(b) }

// body reads a message of size bytes. If the message is larger than firstPiece, body reserves memory for it, but only
// after the first part has arrived. Therefore a client cannot block memory by merely announcing a large message.
func (r *receiver) body(size int64) (*[]byte, error) {
	pool := r.server.buffers
	data, have, reserved := pool.Get(int(min(size, firstPiece))), 0, false
	for {
		if err := r.pieces((*data)[have:], reserved); err != nil {
			pool.Put(data)
			return nil, err
		}
		have = len(*data)
		if int64(have) == size {
			break
		}
		next := min(size, waitingPiece)
		if !reserved && (have >= waitingPiece || !r.wait(next)) {
			if err := r.reserve(costFixed + costCopies*size); err != nil {
				pool.Put(data)
				return nil, err
			}
			reserved = true
		}
		if reserved {
			next = size
		}
		larger := pool.Get(int(next))
		copy(*larger, *data)
		pool.Put(data)
		data = larger
	}
	if !reserved && size > firstPiece {
		if err := r.reserve(costFixed + costCopies*size); err != nil {
			pool.Put(data)
			return nil, err
		}
	}
	return data, nil
}

// wait reports whether the given number of bytes may arrive before memory is reserved for them. It returns false if the
// call has ended. It also returns false if all calls together would have more than maxWaiting bytes without a
// reservation. Despite its name, wait does not block.
func (r *receiver) wait(bytes int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return false
	}
	if r.server.waiting.Add(bytes) > maxWaiting {
		r.server.waiting.Add(-bytes)
		return false
	}
	r.waiting += bytes
	return true
}

// work notifies the memory budget that the message has arrived, and that its execution begins (see
// admission.Share.Work).
func (r *receiver) work() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.share.Work()
}

// reserve reserves memory in the budget of the node. It waits until the budget grants or refuses the memory, or until
// the call ends. The error is a gRPC status error or an *api.Error.
func (r *receiver) reserve(bytes int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return status.Error(codes.Canceled, "the call has ended")
	}
	if err := r.share.Add(r.arrival, bytes); err != nil {
		if r.arrival.Err() != nil {
			return status.FromContextError(r.arrival.Err()).Err()
		}
		return api.Overloaded(err)
	}
	r.unwaitLocked()
	return nil
}

// pieces fills b with the next part of a message. reserved must be true if memory is reserved for the message. In this
// case, pieces aborts the call if the client sends slowly while other requests wait for memory.
func (r *receiver) pieces(b []byte, reserved bool) error {
	var transfer *admission.Transfer
	if reserved {
		r.mu.Lock()
		transfer = r.share.Transfer(r.arrival.cancel)
		r.mu.Unlock()
	}
	defer transfer.End()
	for len(b) > 0 {
		piece := b[:min(len(b), readPiece)]
		if err := r.read(piece); err != nil {
			if transfer.Cut() {
				return errSlow()
			}
			return cutShort(err)
		}
		transfer.Moved(len(piece))
		b = b[len(piece):]
	}
	transfer.End() // from here on, the result of Cut does not change
	if transfer.Cut() {
		return errSlow() // the context of the call has ended
	}
	return nil
}

func errSlow() error {
	return api.Overloaded(fault.New(fault.Overloaded, "grpc.receive",
		"the message arrived too slowly while other requests waited for memory"))
}

// cutShort returns the error of a stream that ended within a message.
func cutShort(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return status.Error(codes.Internal, io.ErrUnexpectedEOF.Error())
	}
	return err
}

// end waits until the client has closed its side of the stream. It returns an error if the client sends another
// message.
func (r *receiver) end() error {
	var transfer *admission.Transfer // so that a client that does not close its side keeps no memory that others need
	r.mu.Lock()
	if r.share.Held() {
		transfer = r.share.Transfer(r.arrival.cancel)
	}
	r.mu.Unlock()
	var more [1]byte
	err := r.read(more[:])
	transfer.End() // from here on, the result of Cut does not change
	switch {
	case transfer.Cut():
		return errSlow() // also at the end of the stream: the context of the call has ended
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return cutShort(err)
	}
	return status.Error(codes.Internal,
		"cardinality violation: received multiple request messages for non-client-streaming RPC")
}

// unpack decompresses a message. If the message is not compressed, or if an error occurs, the result is data itself.
func (r *receiver) unpack(flag byte, data *[]byte) (*[]byte, error) {
	if flag == 0 {
		return data, nil
	}
	how := r.wire.RecvCompress()
	if flag != 1 {
		return data, status.Errorf(codes.Internal, "grpc: received unexpected payload format %d", flag)
	}
	if how == "" || how == encoding.Identity {
		return data, status.Error(codes.Internal, "grpc: compressed flag set with identity or empty encoding")
	}
	c := encoding.GetCompressor(how)
	if c == nil {
		return data, status.Errorf(codes.Unimplemented, "grpc: Decompressor is not installed for grpc-encoding %q", how)
	}
	if err := r.reserve(costCopies * r.limit); err != nil { // the decompressed size is unknown
		return data, err
	}
	packed := mem.NewBuffer(data, nil)
	from, err := c.Decompress(mem.BufferSlice{packed}.Reader())
	if err != nil {
		return data, status.Errorf(codes.Internal, "grpc: failed to decompress the message: %v", err)
	}
	out, err := io.ReadAll(io.LimitReader(from, r.limit+1))
	switch {
	case err != nil:
		return data, status.Errorf(codes.Internal, "grpc: failed to decompress the message: %v", err)
	case int64(len(out)) > r.limit:
		err := status.Errorf(codes.ResourceExhausted, "grpc: message after decompression larger than max %d", r.limit)
		if r.lost != nil {
			r.lost(io.MultiReader(bytes.NewReader(out), from), err)
		}
		return data, err
	}
	return &out, nil
}

// oversized reads a message that exceeds the limit, piece by piece.
type oversized struct {
	from *receiver
	left int64
}

// Read implements io.Reader.
func (o *oversized) Read(b []byte) (int, error) {
	b = b[:min(int64(len(b)), o.left)]
	if len(b) == 0 {
		return 0, io.EOF
	}
	if err := o.from.pieces(b, false); err != nil {
		return 0, err
	}
	o.left -= int64(len(b))
	return len(b), nil
}

// unpacked returns a reader of the decompressed message. If the message cannot be decompressed, the reader is empty.
func (r *receiver) unpacked(flag byte, message io.Reader) io.Reader {
	if flag == 0 {
		return message
	}
	if c := encoding.GetCompressor(r.wire.RecvCompress()); c != nil {
		if from, err := c.Decompress(message); err == nil {
			return from
		}
	}
	return bytes.NewReader(nil)
}

// decode decodes data into m. If data is larger than firstPiece, it first counts the elements in data and reserves
// memory for them. An element of two bytes can need more than a hundred bytes when decoded.
func (r *receiver) decode(data []byte, m any) error {
	out, ok := m.(proto.Message)
	if !ok {
		return status.Errorf(codes.Internal, "grpc: failed to unmarshal the received message: %T is no message", m)
	}
	if len(data) > firstPiece {
		t := tally{state: r.server.state, shapes: &r.server.shapes}
		if err := t.message(out.ProtoReflect().Descriptor(), data); err != nil {
			if r.lost != nil {
				r.lost(bytes.NewReader(data), err)
			}
			return err
		}
		if err := r.reserve(t.memory); err != nil {
			return err
		}
	}
	// The nesting of small messages is limited here, because they are not counted. Their content is later delivered to
	// clients, some of which read at most 100 levels.
	if err := (proto.UnmarshalOptions{RecursionLimit: maxNesting}).Unmarshal(data, out); err != nil {
		return status.Errorf(codes.Internal, "grpc: failed to unmarshal the received message: %v", err)
	}
	return nil
}

// writes is the set of methods that write the items of their messages to a state store. The memory budget measures
// how fast the node executes these methods (see admission.Share.Work).
var writes = map[string]bool{
	runtimev1.Dapr_SaveState_FullMethodName:                    true,
	runtimev1.Dapr_DeleteBulkState_FullMethodName:              true,
	runtimev1.Dapr_ExecuteStateTransaction_FullMethodName:      true,
	runtimev1.Dapr_ExecuteActorStateTransaction_FullMethodName: true,
}

// acts is the set of methods that have side effects and can have large answers. If such an answer is dropped, the error
// must say that the request was executed (see dropped).
var acts = map[string]bool{
	runtimev1.Dapr_InvokeService_FullMethodName:          true,
	runtimev1.Dapr_InvokeActor_FullMethodName:            true,
	runtimev1.Dapr_InvokeBinding_FullMethodName:          true,
	runtimev1.Dapr_BulkPublishEvent_FullMethodName:       true,
	runtimev1.Dapr_BulkPublishEventAlpha1_FullMethodName: true,
}

// guarded returns a copy of a service whose unary calls are checked before their message is received. An interceptor
// cannot do this, because grpc-go decodes the message before it calls interceptors.
func (s *Server) guarded(service *grpc.ServiceDesc) *grpc.ServiceDesc {
	out := *service
	out.Methods = make([]grpc.MethodDesc, len(service.Methods))
	for i, m := range service.Methods {
		full := "/" + service.ServiceName + "/" + m.MethodName
		out.Methods[i] = grpc.MethodDesc{MethodName: m.MethodName, Handler: s.guard(full, m.Handler)}
	}
	return &out
}

func (s *Server) guard(method string, handle grpc.MethodHandler) grpc.MethodHandler {
	return func(
		owner any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor,
	) (any, error) {
		if a := arrivalOf(ctx); a != nil && a.refused != nil {
			s.metrics.refuse(method, status.Code(a.refused))
			return nil, a.refused
		}
		if r := s.receiver(ctx, method, true); r != nil {
			defer r.finish()
			if hub, ok := owner.(*hubServer); ok {
				r.lost = hub.lost(ctx, method)
			}
			dec = func(m any) error {
				err := r.receive(m)
				if writes[method] {
					r.work()
				}
				return s.received(ctx, method, err)
			}
		}
		if a := arrivalOf(ctx); a != nil {
			defer func() { a.answer.Release() }() // no effect if an answer has taken over the share
		}
		out, err := handle(owner, ctx, dec, interceptor)
		if m, ok := out.(proto.Message); ok && err == nil {
			if out, err = s.answering(ctx, m, proto.Size(m)); err != nil {
				err = s.answer(method, dropped(method, err))
			}
		}
		return out, err
	}
}

// dropped returns the public error for a call whose answer was dropped for lack of memory. err is the error of the
// reservation. If the method has side effects (see acts), the result says that the request was executed.
func dropped(method string, err error) error {
	if acts[method] {
		return api.AnswerOverloaded(err)
	}
	return api.Overloaded(err) // a read, which the client can repeat
}

// received returns the gRPC error for a call whose message could not be received. It also counts the call as refused,
// unless the client cancelled the call or tooLate has already counted it.
func (s *Server) received(ctx context.Context, method string, err error) error {
	if err == nil {
		return nil
	}
	err = s.answer(method, err)
	if ctx.Err() == nil || status.Code(err) == codes.Unavailable {
		s.metrics.refuse(method, status.Code(err))
	}
	return err
}

// guardedStream is a stream that receives its messages with a receiver.
type guardedStream struct {
	grpc.ServerStream
	from *receiver
	keep func() bool // stops the cancellation of the call at the end of the server; nil = there is none
	// reflection marks a call of the reflection service, which ends when the server closes. For any other call,
	// RecvMsg calls keep at the first message.
	reflection bool
}

// RecvMsg implements grpc.ServerStream. If the server closes while the call waits for its first message, RecvMsg
// returns an error that makes clients retry the call on another node.
func (s *guardedStream) RecvMsg(m any) error {
	err := s.from.receive(m)
	if s.keep == nil || err == nil && s.reflection {
		return err
	}
	kept := s.keep()
	s.keep = nil
	if !kept { // the context of the call has ended, also if the message has just arrived
		return errClosing()
	}
	return err
}

// SendHeader implements grpc.ServerStream. Like SendMsg, it releases the memory of the request.
func (s *guardedStream) SendHeader(m metadata.MD) error {
	s.answers()
	return s.ServerStream.SendHeader(m)
}

// SendMsg implements grpc.ServerStream.
func (s *guardedStream) SendMsg(m any) error {
	s.answers()
	return s.ServerStream.SendMsg(m)
}

// answers must be called when the handler begins to answer. If the call has only one request, answers releases the
// memory of the request, because a long stream of answers must not keep it reserved.
func (s *guardedStream) answers() {
	if s.from.single {
		s.from.release()
	}
}
