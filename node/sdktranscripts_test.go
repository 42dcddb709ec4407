package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	rpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/quorate/quorate/api/http/transcript"
	"github.com/quorate/quorate/node"
)

// The transcripts in testdata/sdks show what the public SDKs of Dapr send and expect about configuration, locks, jobs
// and actors: one file for each SDK. The application of a file whose name ends with -grpc speaks gRPC.
//
// A target that begins with /dapr.proto is a gRPC method. Its messages are in the text form of protobuf. POST calls
// the method. If the method has a stream of answers, POST returns the first answer, and GET returns the next one.
//
// A request with the header "Host: application" is a step that controls the application; see recordedApp.
func TestSDKTranscripts_Match(t *testing.T) {
	files, err := filepath.Glob("testdata/sdks/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			protocol := node.ProtocolHTTP
			app := newRecordedApp(t)
			if strings.HasSuffix(name, "-grpc") {
				protocol = node.ProtocolGRPC
			}
			n, _, _ := running(t, map[string]string{"configstore.yaml": store("configstore", "configuration.raft",
				`{name: writers, value: shop}`)}, func(c *node.Config) {
				c.App.ID, c.App.Port, c.App.Protocol = "shop", app.listen(t, protocol), protocol
			})
			ready(t, n)
			api, err := transcript.HTTP("http://" + n.Addresses().API[0])
			if err != nil {
				t.Fatal(err)
			}
			replaySDK(t, file, &sdkWire{api: api, conn: connect(t, n.Addresses().GRPC[0]), app: app,
				streams: map[string]grpc.ClientStream{}, names: map[string]string{}})
		})
	}
}

func replaySDK(t *testing.T, file string, w *sdkWire) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := transcript.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	got, err := want.Replay(t.Context(), w, transcript.Options{IgnoreHeaders: []string{"Quorate-Consistency",
		"Quorate-Session", "Quorate-Age", "Quorate-Lock-Revision", "Quorate-Lock-Expires-In-Ms"}})
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, got.Format(), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(want.Format()), string(got.Format())); diff != "" {
		t.Errorf("the answers differ from the transcript (-want +got):\n%s", diff)
	}
}

// sdkWire sends the steps of a transcript to a node or to its application. It replaces values that differ from run to
// run by names such as <id 1>.
type sdkWire struct {
	api     transcript.Doer
	conn    *grpc.ClientConn
	app     *recordedApp
	streams map[string]grpc.ClientStream
	names   map[string]string // by kind and value
}

// Do implements transcript.Doer.
func (w *sdkWire) Do(ctx context.Context, r transcript.Request) (transcript.Response, error) {
	for key, name := range w.names {
		_, value, _ := strings.Cut(key, "\x00")
		r.Target = strings.ReplaceAll(r.Target, name, value)
		r.Body = []byte(strings.ReplaceAll(string(r.Body), name, value))
	}
	var out transcript.Response
	var err error
	switch {
	case slices.Contains(r.Header, transcript.Header{Name: "Host", Value: "application"}):
		out, err = w.app.control(ctx, r)
	case strings.HasPrefix(r.Target, "/dapr.proto."):
		out, err = w.call(ctx, r)
	default:
		out, err = w.api.Do(ctx, r)
	}
	out.Body = []byte(w.named(string(out.Body)))
	return out, err
}

// named replaces values that differ from run to run.
func (w *sdkWire) named(text string) string {
	for _, kind := range []string{"id", "version"} {
		pattern := regexp.MustCompile(`\b` + kind + `("?: ?)"([0-9a-f-]+)"`)
		text = pattern.ReplaceAllStringFunc(text, func(match string) string {
			parts := pattern.FindStringSubmatch(match)
			key := kind + "\x00" + parts[2]
			if w.names[key] == "" {
				n := 1
				for other := range w.names {
					if strings.HasPrefix(other, kind+"\x00") {
						n++
					}
				}
				w.names[key] = fmt.Sprintf("<%s %d>", kind, n)
			}
			return kind + parts[1] + `"` + w.names[key] + `"`
		})
	}
	return regexp.MustCompile(`"20\d\d-\d\d-\d\dT[^"]*"`).ReplaceAllString(text, `"<time>"`)
}

// call calls a gRPC method. The answer has the status in a header.
func (w *sdkWire) call(ctx context.Context, r transcript.Request) (transcript.Response, error) {
	method, err := methodOf(r.Target)
	if err != nil {
		return transcript.Response{}, err
	}
	in, out := message(method.Input()), message(method.Output())
	if err := prototext.Unmarshal(r.Body, in); err != nil {
		return transcript.Response{}, err
	}
	for _, h := range r.Header {
		ctx = metadata.AppendToOutgoingContext(ctx, h.Name, h.Value)
	}
	switch {
	case !method.IsStreamingServer():
		err = w.conn.Invoke(ctx, r.Target, in, out)
	case r.Method == http.MethodPost:
		stream, failed := w.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, r.Target)
		if failed != nil {
			return transcript.Response{}, failed
		}
		w.streams[r.Target] = stream
		err = errors.Join(stream.SendMsg(in), stream.CloseSend())
		if err == nil {
			err = stream.RecvMsg(out)
		}
	default:
		err = w.streams[r.Target].RecvMsg(out)
	}
	answer := transcript.Response{Status: http.StatusOK, Header: http.Header{}, Body: protoText(out)}
	switch {
	case errors.Is(err, io.EOF):
		answer.Header.Set("Grpc-Status", "OK, the stream has ended")
	case err != nil:
		answer.Header.Set("Grpc-Status", rpcstatus.Code(err).String())
		answer.Header.Set("Grpc-Message", rpcstatus.Convert(err).Message())
	default:
		answer.Header.Set("Grpc-Status", "OK")
	}
	return answer, nil
}

// methodOf returns the descriptor of the method with the path /service/method.
func methodOf(target string) (protoreflect.MethodDescriptor, error) {
	service, method, _ := strings.Cut(strings.TrimPrefix(target, "/"), "/")
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil, err
	}
	s, ok := found.(protoreflect.ServiceDescriptor)
	if !ok || s.Methods().ByName(protoreflect.Name(method)) == nil {
		return nil, fmt.Errorf("no method %s", target)
	}
	return s.Methods().ByName(protoreflect.Name(method)), nil
}

// message returns an empty message of the type d. It panics if the type is not linked into the test.
func message(d protoreflect.MessageDescriptor) proto.Message {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		panic(err)
	}
	return kind.New().Interface()
}

// protoText returns a message as text, without the spaces that the library adds at random. A value of type Any is its
// type and its bytes.
func protoText(m proto.Message) []byte {
	text, err := prototext.MarshalOptions{Multiline: true, Indent: "  ", Resolver: new(protoregistry.Types)}.Marshal(m)
	if err != nil {
		panic(err)
	}
	return regexp.MustCompile(`(?m)^(\s*\w+:) +`).ReplaceAll([]byte(strings.TrimSpace(string(text))), []byte("$1 "))
}
