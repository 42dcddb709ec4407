package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"time"
)

const (
	store     = "statestore"
	saveBytes = 1 << 20 // per request; well below the limit of a body
	saveItems = 500
	readItems = 1000
	patience  = time.Minute
)

// child is a node in its own process.
type child struct {
	process *exec.Cmd
	base    string
	http    http.Client
	ended   chan struct{} // closed when the process has ended
}

// start runs quorate on free ports and waits until it is ready.
func start(ctx context.Context, binary, dataDir, logStore string) (*child, error) {
	cmd := exec.Command(binary, "run", "--log-as-json", "--http-port", "0", "--enable-grpc=false", "--metrics-port",
		"0", "--data-dir", dataDir, "--log-store", logStore, "--app-id", "demo")
	logs, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	n := &child{process: cmd, ended: make(chan struct{})}
	addresses := make(chan string, 1)
	go n.watch(logs, addresses)
	if err := n.ready(ctx, addresses); err != nil {
		n.kill()
		return nil, err
	}
	return n, nil
}

// watch reads the log of the node until the process ends. It finds the address of the node there, and forwards
// warnings and errors.
func (n *child) watch(logs io.Reader, addresses chan<- string) {
	defer close(n.ended)
	lines := bufio.NewScanner(logs)
	for lines.Scan() {
		var r struct{ Level, API string }
		if json.Unmarshal(lines.Bytes(), &r) != nil || r.Level == "WARN" || r.Level == "ERROR" {
			fmt.Fprintln(os.Stderr, "node: "+lines.Text())
		}
		if r.API != "" {
			select {
			case addresses <- r.API:
			default:
			}
		}
	}
	_ = n.process.Wait() // a killed process always returns an error
}

// ready waits for the address and then for the health of the node.
func (n *child) ready(ctx context.Context, addresses <-chan string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case address := <-addresses:
		n.base = "http://" + address
	case <-n.ended:
		return fmt.Errorf("the node ended before it was ready")
	case <-ctx.Done():
		return fmt.Errorf("the node has not printed its address: %w", ctx.Err())
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ; ; <-tick.C {
		_, err := n.call(ctx, http.MethodGet, "/v1.0/healthz", nil)
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
}

// kill kills the node without a graceful stop, and waits until it has ended.
func (n *child) kill() {
	_ = n.process.Process.Kill() // it may have ended already
	<-n.ended
	n.http.CloseIdleConnections()
}

// save writes all records in batches. Each batch is one request.
func (n *child) save(ctx context.Context, records []record) error {
	var body bytes.Buffer
	items := 0
	send := func() error {
		if items == 0 {
			return nil
		}
		body.WriteByte(']')
		_, err := n.call(ctx, http.MethodPost, "/v1.0/state/"+store, body.Bytes())
		body.Reset()
		items = 0
		return err
	}
	for _, r := range records {
		separator := ","
		if items == 0 {
			separator = "["
		}
		key, _ := json.Marshal(r.key) // marshalling a string cannot fail
		fmt.Fprintf(&body, `%s{"key":%s,"value":%s,"options":{"consistency":"strong"}}`, separator, key, r.value)
		if items++; items == saveItems || body.Len() > saveBytes {
			if err := send(); err != nil {
				return err
			}
		}
	}
	return send()
}

// compare reads all records back, and returns an error if one differs from the saved record. If several records were
// saved with the same key, the last one counts. compare adds the ETag of each key to etags.
func (n *child) compare(ctx context.Context, records []record, etags map[string]string) error {
	want := map[string][]byte{}
	for _, r := range records {
		want[r.key] = r.value
	}
	for len(records) > 0 {
		part := records[:min(readItems, len(records))]
		records = records[len(part):]
		if err := n.compareBulk(ctx, part, want, etags); err != nil {
			return err
		}
	}
	return nil
}

func (n *child) compareBulk(ctx context.Context, part []record, want map[string][]byte, etags map[string]string) error {
	keys := make([]string, len(part))
	for i, r := range part {
		keys[i] = r.key
	}
	body, err := json.Marshal(map[string]any{"keys": keys})
	if err != nil {
		return err
	}
	answer, err := n.call(ctx, http.MethodPost, "/v1.0/state/"+store+"/bulk?consistency=strong", body)
	if err != nil {
		return err
	}
	var items []struct {
		Key, ETag, Error string
		Data             json.RawMessage
	}
	if err := json.Unmarshal(answer, &items); err != nil {
		return err
	}
	if len(items) != len(part) {
		return fmt.Errorf("%d records were requested, %d were returned", len(part), len(items))
	}
	for i, it := range items {
		if it.Key != keys[i] || !bytes.Equal(it.Data, want[it.Key]) || it.ETag == "" {
			return fmt.Errorf("record %q differs: saved %q, read %q (etag %q, error %q)", keys[i], want[keys[i]],
				it.Data, it.ETag, it.Error)
		}
		etags[it.Key] = it.ETag
	}
	return nil
}

// call sends one request and returns the body of a successful response.
func (n *child) call(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, n.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := n.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= http.StatusMultipleChoices {
		err = fmt.Errorf("%s %s answered %s: %s", method, path, resp.Status, answer)
	}
	return answer, err
}
