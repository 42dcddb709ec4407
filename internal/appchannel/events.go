package appchannel

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	runtime "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/headers"
)

// event is one event of an input binding.
type event struct {
	binding, path string
	data          []byte
	metadata      map[string]string
}

// Takes reports whether the application wants the events of a binding:
//
//   - An HTTP application wants them if it answers OPTIONS /{path} with a status of 2xx or 405.
//   - A gRPC application wants them if its answer to ListInputBindings contains the binding. If the application does
//     not implement ListInputBindings, the result is false. For any other error of the application, Takes returns
//     fault.Internal.
//
// Takes also returns the errors of RoundTrip.
func (c *Channel) Takes(ctx context.Context, binding, path string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.OptionsTimeout)
	defer cancel()
	return c.carry.takes(ctx, binding, path)
}

// Take delivers an event, waits for the answer and returns its data. If err is nil, the application has handled the
// event. The data are empty if the answer is too long.
//
// An HTTP application gets the metadata of the event as headers, except names that the channel or the runtime sets.
// Take returns the errors of RoundTrip, and:
//
//	invalid   a metadata name cannot be the name of a header
//	internal  the application answered that it failed
func (c *Channel) Take(ctx context.Context, binding, path string, data []byte, metadata map[string]string) ([]byte,
	error) {
	ctx, cancel := context.WithCancel(ctx) // net/http registers each request with its context; cancel removes this
	defer cancel()
	return c.carry.take(ctx, event{binding: binding, path: path, data: data, metadata: metadata})
}

// refusedEvent returns the error of an event that the application failed to handle.
func (e event) refusedEvent(why string) error {
	return fault.New(fault.Internal, "appchannel.Take",
		"the application did not handle the event of "+e.binding+": "+why)
}

func (h *httpCarrier) takes(ctx context.Context, binding, path string) (bool, error) {
	answer, err := h.channel.RoundTrip(eventRequest(ctx, http.MethodOptions, path, nil))
	if err != nil {
		return false, err
	}
	finish(answer.Body)
	return handled(answer.StatusCode) || answer.StatusCode == http.StatusMethodNotAllowed, nil
}

func (h *httpCarrier) take(ctx context.Context, e event) ([]byte, error) {
	r := eventRequest(ctx, http.MethodPost, e.path, e.data)
	if err := e.headers(r.Header); err != nil {
		return nil, err
	}
	answer, err := h.channel.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer finish(answer.Body)
	if !handled(answer.StatusCode) {
		return nil, e.refusedEvent(fmt.Sprintf("POST /%s answered %d", strings.TrimPrefix(e.path, "/"),
			answer.StatusCode))
	}
	limit := h.channel.opts.MaxMessage
	data, err := io.ReadAll(io.LimitReader(answer.Body, limit+1))
	if err != nil {
		return nil, h.channel.unanswered(err)
	}
	if int64(len(data)) > limit {
		h.channel.dropAnswer(e, limit)
		return nil, nil
	}
	return data, nil
}

// dropAnswer logs that the answer to an event is longer than limit.
func (c *Channel) dropAnswer(e event, limit int64) {
	c.opts.Logger.Warn("the application handled an event, but its answer is dropped", "binding", e.binding, "reason",
		fmt.Sprintf("it is longer than %d bytes", limit))
}

func handled(code int) bool { return code >= 200 && code <= 299 }

// finish reads the rest of a body, up to 64 KiB, and closes the body. If this reaches the end of the body, the
// connection can be reused.
func finish(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, 64<<10)
	_ = body.Close()
}

func eventRequest(ctx context.Context, verb, path string, data []byte) *http.Request {
	r := &http.Request{
		Method: verb, URL: &url.URL{Path: "/" +
			strings.TrimPrefix(path, "/")}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"User-Agent": {"quorate"}}, ContentLength: int64(len(data)), Body: http.NoBody,
	}
	if verb == http.MethodPost {
		r.Header["Content-Type"] = []string{"application/json"}
	}
	if len(data) > 0 {
		r.Body = io.NopCloser(bytes.NewReader(data))
	}
	return r.WithContext(ctx)
}

// headers adds the metadata of the event to h, except names that the channel or the runtime sets. It returns
// fault.Invalid if a name is not a valid header name.
func (e event) headers(h http.Header) error {
	for name, value := range e.metadata {
		if !token(name) {
			return fault.New(fault.Invalid, "appchannel.Take",
				fmt.Sprintf("the metadata %q of an event of %s cannot be a header", name, e.binding))
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		if _, own := h[name]; !own && !framing(name) && !headers.PerHop(name) && !headers.FoldsToOurs(name) {
			h[name] = []string{printable(value)}
		}
	}
	return nil
}

// framing reports whether the runtime itself sets the header with the given name, as it does for Content-Length. The
// metadata of an event must not set such a header.
func framing(name string) bool {
	switch name {
	case "Content-Length", "Host", tokenHeader:
		return true
	}
	return false
}

// token reports whether name is a valid header name.
func token(name string) bool {
	for _, c := range []byte(name) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0 {
			continue
		}
		return false
	}
	return name != ""
}

func (g *grpcCarrier) takes(ctx context.Context, binding, _ string) (bool, error) {
	var list *runtime.ListInputBindingsResponse
	err := g.call(ctx, func(ctx context.Context, o ...grpc.CallOption) (err error) {
		list, err = g.app.ListInputBindings(ctx, &emptypb.Empty{}, o...)
		return err
	})
	switch {
	case err == nil:
		return slices.Contains(list.GetBindings(), binding), nil
	case status.Code(err) == codes.Unimplemented:
		return false, nil
	}
	return false, answered(err, func(s *status.Status) error {
		return fault.New(fault.Internal, "appchannel.Takes",
			"the application did not list its bindings: gRPC "+s.Code().String()+": "+s.Message())
	})
}

func (g *grpcCarrier) take(ctx context.Context, e event) ([]byte, error) {
	var out *runtime.BindingEventResponse
	in := &runtime.BindingEventRequest{Name: e.binding, Data: e.data, Metadata: e.metadata}
	err := g.call(ctx, func(ctx context.Context, o ...grpc.CallOption) (err error) {
		out, err = g.app.OnBindingEvent(ctx, in, o...)
		return err
	})
	if g.channel.tooLong(err, in) {
		g.channel.dropAnswer(e, int64(g.channel.maxAnswer()))
		return nil, nil
	}
	if err != nil {
		return nil, answered(err, func(s *status.Status) error {
			return e.refusedEvent("gRPC " + s.Code().String() +
				": " + s.Message())
		})
	}
	if len(out.GetStates()) > 0 || len(out.GetTo()) > 0 {
		g.channel.saidUnsaved.Do(func() {
			g.channel.opts.Logger.Warn("the application answers events with state to save or bindings to call; "+
				"these have no effect", "binding", e.binding, "hint", "call the API from the handler")
		})
	}
	return out.GetData(), nil
}

// answered converts the error of a gRPC call. If the application did not answer, err is a *fault.Error, and is returned
// unchanged. Otherwise err is the gRPC status of the answer, and answered returns the result of explain for this
// status.
func answered(err error, explain func(*status.Status) error) error {
	if _, ok := fault.As(err); ok {
		return err
	}
	return explain(status.Convert(err))
}

// call makes a gRPC call with the function send. It adds the application's token and respects the limit of concurrent
// calls. If the application did not answer, call returns a *fault.Error. If the application answered with an error,
// call returns this error, which is a gRPC status.
func (g *grpcCarrier) call(ctx context.Context, send func(context.Context, ...grpc.CallOption) error) error {
	c := g.channel
	if err := c.admit(ctx); err != nil {
		return err
	}
	defer c.leave()
	sent := new(atomic.Bool)
	out := context.WithValue(ctx, sentKey{}, sent)
	if c.opts.Token != "" {
		out = metadata.AppendToOutgoingContext(out, strings.ToLower(tokenHeader), c.opts.Token)
	}
	var header, trailer metadata.MD
	err := send(out, grpc.Header(&header), grpc.Trailer(&trailer))
	if err == nil {
		return nil
	}
	if lost := g.lost(ctx, sent.Load(), len(header)+len(trailer) > 0, err); lost != nil {
		return lost
	}
	return err
}
