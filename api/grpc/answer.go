package grpc

import (
	"context"
	"sync/atomic"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/admission"
)

// The bounds of outgoing answers.
const (
	freeAnswer  = 64 << 10  // size in bytes up to which an answer reserves no memory
	answerPiece = 256 << 10 // size in bytes of the pieces of an answer; each is freed once it is sent
	// answerCopies is the number of copies of an answer for which memory is reserved: the value that was read, and the
	// encoded message. If the connection breaks, both stay in memory until the next garbage collection.
	answerCopies = 2
)

// answer is a large message to a client. Its memory stays reserved until the message is sent, because grpc-go queues
// messages that the client does not read.
type answer struct {
	message  any // proto.Message or *frame
	conn     *conn
	share    admission.Share
	transfer *admission.Transfer
	pieces   atomic.Int64 // pieces that are not sent yet
	over     atomic.Bool
}

// answering returns the value to pass to grpc-go for a message of the given size in bytes. A small message is returned
// unchanged. For a large message, answering reserves memory and returns an *answer, which the caller must send or end.
// It returns a fault if the memory cannot be reserved.
func (c *core) answering(ctx context.Context, message any, size int) (any, error) {
	to := connOf(ctx)
	if c.answers == nil || size <= freeAnswer || to == nil {
		return message, nil
	}
	a := &answer{message: message, conn: to, share: c.answers.Share()}
	if call := arrivalOf(ctx); call != nil && call.answer.Held() {
		a.share, call.answer = call.answer, admission.Share{}
	} else if err := a.share.AddUsed(ctx, int64(size)); err != nil {
		return nil, err
	}
	// grpc-go cannot end a single call whose answer is already queued, so the whole connection is closed.
	a.transfer = a.share.Transfer(func() { go func() { _ = to.Close() }() })
	if !to.begin(a) {
		a.end()
	}
	return a, nil
}

// held reads a value and reserves memory for the answer. It first reads with a small options.MaxValue, so that the
// store returns only the size of a large value. If the value is large, held waits for memory and then reads again
// without the limit. A waiting call therefore holds no large value. read must pass the options to the store.
func (c *core) held(
	ctx context.Context, options *api.ReadOptions, read func() (state.Item, error),
) (state.Item, error) {
	a := arrivalOf(ctx)
	if c.answers == nil || a == nil {
		return read()
	}
	options.MaxValue = api.UnreservedValue
	item, err := read()
	size := costFixed + max(int64(len(item.Value)), item.Size)
	if err != nil || size <= freeAnswer+costFixed {
		return item, err
	}
	a.answer, size = c.answers.Share(), answerCopies*size
	if a.answer.TryAdd(size) && item.Size == 0 {
		return item, nil
	}
	stale := item.Level == state.Stale
	item = state.Item{}
	if !a.answer.Held() {
		if err := a.answer.Add(ctx, size); err != nil {
			return item, api.Overloaded(err)
		}
	}
	options.MaxValue = 0
	if item, err = read(); err == nil && stale {
		item.Level = state.Stale // only the first read reports a lost write
	}
	return item, err
}

// smallBulk and largeBulk limit the total size in bytes of the values in a bulk read. A bulk read starts with
// smallBulk. If the values are larger, it is repeated with largeBulk.
const (
	smallBulk  = 128 << 10
	largeBulk  = 32 << 20
	bulkCopies = 2 // the values, and the encoded answer
)

// largeList is the maximum total size in bytes of the jobs or reminders that one call lists.
const largeList = largeBulk

// bulk reads several keys within the memory budget for answers. It first reads with a small limit. If the values are
// larger, it reads them again with a large limit.
func (c *core) bulk(
	ctx context.Context, request api.BulkGetRequest, read func(api.BulkGetRequest) (api.Bulk, error),
) (api.Bulk, error) {
	a := arrivalOf(ctx)
	if a == nil {
		request.MaxBytes = largeBulk
		return read(request)
	}
	within := func(bound int64) (api.Bulk, error) {
		a.answer = c.answers.Share()
		if err := a.answer.Add(ctx, bulkCopies*bound); err != nil {
			return api.Bulk{}, api.Overloaded(err)
		}
		request.MaxBytes = bound
		return read(request)
	}
	out, err := within(smallBulk)
	if state.IsValuesTooLarge(err) {
		a.answer.Release()
		out, err = within(largeBulk)
	}
	return out, err
}

// hold reserves memory for an answer of at most size bytes. It first releases the memory that the call has reserved
// before.
func (c *core) hold(ctx context.Context, size int64) error {
	a := arrivalOf(ctx)
	if c.answers == nil || a == nil {
		return nil
	}
	a.answer.Release()
	a.answer = c.answers.Share()
	if err := a.answer.Add(ctx, answerCopies*size); err != nil {
		return api.Overloaded(err)
	}
	return nil
}

// extend reserves more memory for an answer that grows by size bytes. The call keeps the memory that it has reserved
// before.
func (c *core) extend(ctx context.Context, size int64) error {
	a := arrivalOf(ctx)
	if c.answers == nil || a == nil {
		return nil
	}
	if !a.answer.Held() {
		a.answer = c.answers.Share()
	}
	if err := a.answer.Add(ctx, answerCopies*size); err != nil {
		return api.Overloaded(err)
	}
	return nil
}

// end releases the reserved memory. It may be called several times.
func (a *answer) end() {
	if a.over.Swap(true) {
		return
	}
	a.transfer.End()
	a.share.Release()
	a.conn.finish(a)
}

// marshal encodes the message as several buffers. It copies neither the data of a frame nor the value of a
// GetStateResponse. grpc-go calls sent.Put after it has sent or discarded a piece of the data.
func (a *answer) marshal() (mem.BufferSlice, error) {
	if f, ok := a.message.(*frame); ok {
		return a.cut(nil, f.data, nil), nil
	}
	m := a.message.(proto.Message)
	if g, ok := m.(*runtimev1.GetStateResponse); ok {
		return a.marshalValue(g)
	}
	data, err := proto.Marshal(m)
	if err != nil {
		a.end()
		return nil, err
	}
	return a.cut(nil, data, nil), nil
}

func (a *answer) marshalValue(g *runtimev1.GetStateResponse) (mem.BufferSlice, error) {
	rest, err := proto.Marshal(&runtimev1.GetStateResponse{Etag: g.GetEtag(), Metadata: g.GetMetadata()})
	if err != nil {
		a.end()
		return nil, err
	}
	const data = 1 // the number of the field
	head := protowire.AppendTag(nil, data, protowire.BytesType)
	return a.cut(protowire.AppendVarint(head, uint64(len(g.GetData()))), g.GetData(), rest), nil
}

// cut returns a message as buffers: head, then data in pieces, then rest. A piece has at least answerPiece bytes,
// unless data is shorter.
func (a *answer) cut(head, data, rest []byte) mem.BufferSlice {
	out := mem.BufferSlice{mem.SliceBuffer(head)}
	a.pieces.Store(int64(max(len(data)/answerPiece, 1)))
	for len(data) > 0 {
		size := answerPiece
		if len(data) < 2*answerPiece {
			size = len(data) // grpc-go does not report when a small piece is sent
		}
		piece := data[:size:size]
		out = append(out, mem.NewBuffer(&piece, (*sent)(a)))
		data = data[size:]
	}
	if len(rest) > 0 {
		out = append(out, mem.SliceBuffer(rest))
	}
	return out
}

// The type sent implements mem.BufferPool for the buffers of an answer. It counts the buffers that grpc-go puts back,
// but does not reuse them, because their bytes may belong to a stored value.
type sent answer

// Get returns a new buffer. grpc-go does not call it.
func (*sent) Get(length int) *[]byte { b := make([]byte, length); return &b }

// Put counts a piece that was sent or discarded.
func (s *sent) Put(piece *[]byte) {
	a := (*answer)(s)
	a.transfer.Moved(len(*piece))
	if a.pieces.Add(-1) == 0 {
		a.end()
	}
}
