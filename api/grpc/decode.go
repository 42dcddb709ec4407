package grpc

import (
	"context"
	"strconv"
	"time"

	commonv1 "github.com/dapr/dapr/pkg/proto/common/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/headers"
)

// The metadata keys that Quorate adds to the Dapr API. HTTP has headers of the same names.
const (
	keySession     = "quorate-session"
	keyRequestID   = "quorate-request-id"
	keyConsistency = "quorate-consistency"
	keyAge         = "quorate-age"
)

func decodeItems(in []*commonv1.StateItem) ([]api.Item, error) {
	items := make([]api.Item, len(in))
	for i, it := range in {
		if err := decodeItem(it, itemName(i, len(in)), &items[i]); err != nil {
			return nil, err
		}
	}
	return items, nil
}

func decodeItem(in *commonv1.StateItem, where string, out *api.Item) (err error) {
	out.Key, out.Value, out.ETag, out.Metadata = in.GetKey(), present(in.GetValue()), in.GetEtag().GetValue(),
		in.GetMetadata()
	out.Concurrency, out.Consistency, err = decodeOptions(in.GetOptions(), where)
	return err
}

// present returns value, or an empty slice if value is nil. protobuf cannot distinguish a missing value from an empty
// one, so both count as empty.
func present(value []byte) []byte {
	if value == nil {
		return []byte{}
	}
	return value
}

func itemName(index, count int) string {
	if count == 1 {
		return ""
	}
	return "item " + strconv.Itoa(index) + ": "
}

func decodeOptions(o *commonv1.StateOptions, where string) (state.Concurrency, state.Consistency, error) {
	consistency, err := decodeConsistency(o.GetConsistency(), where)
	if err != nil {
		return 0, 0, err
	}
	switch c := o.GetConcurrency(); c {
	case commonv1.StateOptions_CONCURRENCY_UNSPECIFIED, commonv1.StateOptions_CONCURRENCY_LAST_WRITE:
		return state.LastWrite, consistency, nil
	case commonv1.StateOptions_CONCURRENCY_FIRST_WRITE:
		return state.FirstWrite, consistency, nil
	default:
		return 0, 0, api.MalformedRequest(where + "concurrency " + strconv.Itoa(int(c)) +
			" is not known (use first-write or last-write)")
	}
}

func decodeConsistency(c commonv1.StateOptions_StateConsistency, where string) (state.Consistency, error) {
	switch c {
	case commonv1.StateOptions_CONSISTENCY_UNSPECIFIED:
		return state.DefaultConsistency, nil
	case commonv1.StateOptions_CONSISTENCY_EVENTUAL:
		return state.Eventual, nil
	case commonv1.StateOptions_CONSISTENCY_STRONG:
		return state.Strong, nil
	default:
		return 0, api.MalformedRequest(where + "consistency " + strconv.Itoa(int(c)) +
			" is not known (use eventual or strong)")
	}
}

func readOptions(ctx context.Context, c commonv1.StateOptions_StateConsistency,
	more map[string]string) (api.ReadOptions, error) {
	consistency, err := decodeConsistency(c, "")
	return api.ReadOptions{Consistency: consistency, Session: first(ctx, keySession), Trace: trace(ctx),
		Metadata: more}, err
}

func writeOptions(ctx context.Context) api.WriteOptions {
	return api.WriteOptions{Session: first(ctx, keySession), Trace: trace(ctx), RequestID: first(ctx, keyRequestID),
		Locks: metadata.ValueFromIncomingContext(ctx, keyLock)}
}

// empty returns the empty answer of a write, and sets the headers that report its consistency.
func empty(ctx context.Context, w *state.Written, err error) (*emptypb.Empty, error) {
	if err != nil {
		return nil, err
	}
	prove(ctx, &w.Proof)
	return &emptypb.Empty{}, nil
}

// prove sets the headers that report the freshness of the answer.
func prove(ctx context.Context, p *state.Proof) {
	var pairs []string
	if p.Session != "" {
		pairs = append(pairs, keySession, p.Session)
	}
	if p.Level != "" {
		pairs = append(pairs, keyConsistency, string(p.Level))
	}
	if p.Level != state.Linearizable && p.Level != "" && p.Age >= 0 {
		pairs = append(pairs, keyAge, strconv.FormatInt(p.Age.Milliseconds(), 10))
	}
	if len(pairs) > 0 {
		_ = grpc.SetHeader(ctx, metadata.Pairs(pairs...)) // fails only outside of a call
	}
}

// itemMetadata returns the metadata of an item. It contains the content type if the value is not JSON, and the expiry
// time if the item has one.
func itemMetadata(item *state.Item) map[string]string {
	if item.ContentType == "" && item.Expires.IsZero() {
		return nil
	}
	out := make(map[string]string, 2)
	if item.ContentType != "" {
		out[state.MetadataContentType] = item.ContentType
	}
	if !item.Expires.IsZero() {
		out[state.MetadataExpireTime] = state.ExpirySecond(item.Expires).Format(time.RFC3339)
	}
	return out
}

// trace returns the id of the trace of a call.
func trace(ctx context.Context) string { return api.TraceID(parentOf(ctx)) }

// keyTraceBinary carries the parent span in the binary form that older gRPC libraries send.
const keyTraceBinary = "grpc-trace-bin"

// parentOf returns the traceparent of a call, also if the call has only the binary form.
func parentOf(ctx context.Context) string {
	if v := first(ctx, keyTraceparent); v != "" {
		return v
	}
	return headers.TraceParent([]byte(first(ctx, keyTraceBinary)))
}
