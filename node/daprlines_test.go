package node_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	commonv1 "github.com/dapr/dapr/pkg/proto/common/v1"
	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/quorate/quorate/api/http/transcript"
	"github.com/quorate/quorate/node"
)

// Each transcript in testdata/dapr/nodes needs a node with its own settings. In addition to HTTP requests, these
// transcripts have the following methods:
//
//	WRITE, REMOVE  changes a component file; the answer is what the reload logged
//	WARNINGS       the warnings of the log that contain the target
//	INVOKE         InvokeService over gRPC; the target is the method, Calls is how many run at the same time
//	SERIES         the series of the metrics page that begin with the target, without times
func TestDaprTranscripts_NodesMatch(t *testing.T) {
	for name, open := range map[string]func(*testing.T) *daprNode{"exported": exportedFiles,
		"grpcapp": gatheringNode, "metrics": daprMetrics, "reload": reloaded, "scopes": scoped} {
		t.Run(name, func(t *testing.T) {
			n := open(t)
			client, err := transcript.HTTP("http://" + n.Addresses().API[0])
			if err != nil {
				t.Fatal(err)
			}
			n.t, n.Doer = t, client
			replayFile(t, filepath.Join("testdata/dapr/nodes", name+".txt"), n)
		})
	}
}

// daprNode is a node of a transcript.
type daprNode struct {
	*node.Node
	transcript.Doer
	t   *testing.T
	dir string // of the component files
	log *record
}

func daprNodeOf(n *node.Node, dir string, log *record) *daprNode {
	return &daprNode{Node: n, dir: dir, log: log}
}

// Do implements transcript.Doer.
func (n *daprNode) Do(ctx context.Context, r transcript.Request) (transcript.Response, error) {
	switch r.Method {
	case "WRITE", "REMOVE":
		return n.reload(r), nil
	case "WARNINGS":
		return n.text(n.lines(0, "level=WARN", r.Target)), nil
	case "INVOKE":
		return n.invoke(ctx, r), nil
	case "SERIES":
		return n.text(n.series(r)), nil
	}
	return n.Doer.Do(ctx, r)
}

// text returns an answer with lines. Paths of component files are relative.
func (n *daprNode) text(lines []string) transcript.Response {
	all := strings.ReplaceAll(strings.Join(lines, "\n"), n.dir+"/", "")
	return transcript.Response{Status: 200, Body: []byte(all)}
}

// lines returns the messages of the log from an offset that have all words, without times.
func (n *daprNode) lines(from int, words ...string) (out []string) {
	for line := range strings.Lines(n.log.String()[from:]) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			_, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			out = append(out, rest)
		}
	}
	return out
}

func (n *daprNode) reload(r transcript.Request) transcript.Response {
	n.t.Helper()
	before := len(n.log.String())
	if r.Method == "WRITE" {
		write(n.t, n.dir, r.Target, string(r.Body)+"\n")
	} else if err := os.Remove(filepath.Join(n.dir, r.Target)); err != nil {
		n.t.Fatal(err)
	}
	var out []string
	poll(n.t, func() error {
		if out = n.lines(before, "change", "component files"); len(out) == 0 {
			return errors.New("no reload")
		}
		return nil
	})
	return n.text(out)
}

func (n *daprNode) invoke(ctx context.Context, r transcript.Request) transcript.Response {
	n.t.Helper()
	conn, err := grpc.NewClient(n.Addresses().GRPC[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	message := &commonv1.InvokeRequest{Method: strings.TrimPrefix(r.Target, "/")}
	if len(r.Body) > 0 {
		message.Data = new(anypb.Any)
		message.Data.Value = r.Body
	}
	calls := 1
	for _, h := range r.Header {
		switch h.Name {
		case "Calls":
			calls, _ = strconv.Atoi(h.Value)
		case "TypeUrl":
			message.Data.TypeUrl = h.Value
		}
	}
	type result struct {
		answer *commonv1.InvokeResponse
		err    error
	}
	results := make(chan result, calls)
	for range calls {
		go func() {
			answer, err := runtimev1.NewDaprClient(conn).InvokeService(ctx,
				&runtimev1.InvokeServiceRequest{Id: "shop", Message: message})
			results <- result{answer, err}
		}()
	}
	counts := map[string]int{}
	for range calls {
		one := <-results
		text := fmt.Sprintf("%s %s %s", one.answer.GetContentType(), one.answer.GetData().GetTypeUrl(),
			one.answer.GetData().GetValue())
		if one.err != nil {
			text = one.err.Error()
		}
		counts[text]++
	}
	var out []string
	for text, times := range counts {
		out = append(out, fmt.Sprintf("%d × %s", times, text))
	}
	slices.Sort(out)
	return n.text(out)
}

// series returns the series of the metrics page that begin with the target of r. Requests are counted after their
// answer, so series waits for the text in the header Until.
func (n *daprNode) series(r transcript.Request) (out []string) {
	n.t.Helper()
	times := regexp.MustCompile(`(_sum\{[^}]*\}) .*`)
	poll(n.t, func() error {
		page := scrape(n.t, n.Node)
		for _, h := range r.Header {
			if !strings.Contains(page, h.Value) {
				return fmt.Errorf("no %s", h.Value)
			}
		}
		out = nil
		for line := range strings.Lines(page) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, r.Target) && !strings.Contains(line, "healthz") &&
				!strings.Contains(line, "_bucket{") {
				out = append(out, times.ReplaceAllString(line, "$1 <time>"))
			}
		}
		return nil
	})
	return out
}

// exportedFiles opens a node with files that kubectl exported, one of which is also given with --config.
func exportedFiles(t *testing.T) *daprNode {
	const exported = "  creationTimestamp: \"2026-01-02T03:04:05Z\"\n  generation: 3\n  resourceVersion: \"4711\"\n" +
		"  uid: 0d9f7c9e-6d1f-4c1a-9d7e-3b1f6c1f7a11\n  annotations:\n    example.org/owner: shop\n" +
		"  managedFields:\n  - {manager: kubectl, operation: Update, apiVersion: dapr.io/v1alpha1}\n"
	component := "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: orders\n" + exported +
		"spec:\n  type: state.in-memory\n  version: v1\n  metadata:\n" +
		"  - {name: keyPrefix, value: name, secretKeyRef: {name: \"\", key: \"\"}}\nauth: {secretStore: \"\"}\n" +
		"status: {}\n"
	conf := "apiVersion: dapr.io/v1alpha1\nkind: Configuration\nmetadata:\n  name: shop\n" + exported +
		"spec:\n  features: [{name: HotReload, enabled: true}]\n"
	return daprNodeOf(running(t, map[string]string{"orders.yaml": component, "shop.yaml": conf},
		func(c *node.Config) {
			c.Components.ConfigFiles = []string{filepath.Join(c.Components.Paths[0], "shop.yaml")}
		}))
}

func reloaded(t *testing.T) *daprNode {
	return daprNodeOf(running(t, map[string]string{"first.yaml": store("first", "state.in-memory", "")}, nil))
}

func scoped(t *testing.T) *daprNode {
	t.Setenv("SHOP_KEY", "value of the secret")
	return daprNodeOf(running(t, map[string]string{
		"env.yaml": document("Component", "vault", "  type: secretstores.local.env\n  version: v1\n"+
			"  metadata: [{name: prefix, value: SHOP_}]\n"),
		"conf.yaml": document("Configuration", "shared", "  secrets:\n    scopes:\n"+
			"    - {storeName: vault, defaultAccess: deny, allowedSecrets: [KEY]}\n"+
			"    - {storeName: elsewhere-in-production, defaultAccess: deny}\n"),
	}, nil))
}

func daprMetrics(t *testing.T) *daprNode {
	return daprNodeOf(running(t, map[string]string{
		"orders.yaml": store("orders", "state.in-memory", ""),
		"env.yaml":    document("Component", "vault", "  type: secretstores.local.env\n  version: v1\n"),
		"conf.yaml":   document("Configuration", "c", daprNamesOn),
	}, func(c *node.Config) { c.App.Port, c.App.ID = daprApp(t), "shop" }))
}

// gatheringApp is a gRPC application. Calls of the method gather wait until all gathered calls have arrived.
type gatheringApp struct {
	healthyApp
	arrived atomic.Int32
	all     chan struct{} // closed when gathered calls have arrived
}

const (
	gathered    = 200
	streamLimit = 100
)

func (a *gatheringApp) OnInvoke(ctx context.Context, r *commonv1.InvokeRequest) (*commonv1.InvokeResponse, error) {
	if r.GetMethod() == "gather" {
		if a.arrived.Add(1) == gathered {
			close(a.all)
		}
		select {
		case <-a.all:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	answer := []byte(r.GetMethod() + " " + string(r.GetData().GetValue()) + " " + r.GetData().GetTypeUrl())
	return &commonv1.InvokeResponse{ContentType: "application/x-protobuf",
		Data: &anypb.Any{TypeUrl: "type.example.org/answer", Value: answer}}, nil
}

func gatheringNode(t *testing.T) *daprNode {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	app := &gatheringApp{all: make(chan struct{})}
	s := grpc.NewServer(grpc.MaxConcurrentStreams(streamLimit))
	runtimev1.RegisterAppCallbackServer(s, app)
	runtimev1.RegisterAppCallbackHealthCheckServer(s, app)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	n := daprNodeOf(running(t, nil, func(c *node.Config) {
		c.App.ID, c.App.Port, c.App.Protocol = "shop", l.Addr().(*net.TCPAddr).Port, node.ProtocolGRPC
	}))
	answers(t, n.Node, http.MethodGet, "/v1.0/invoke/shop/method/ready", "", 200, "")
	return n
}
