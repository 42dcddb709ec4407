package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// quorate is a cluster of three nodes on this machine, or one node.
type quorate struct {
	*processes
	title   string
	program string
	version string
	args    []string
	nodes   []string // addresses of the API
	bare    bool
	conns   []client
}

func openQuorate(ctx context.Context, s *settings, dir string) (store, error) {
	return startQuorate(ctx, "quorate", s.quorate, s, dir)
}

// openBeside starts another Quorate program, if one is given.
func openBeside(ctx context.Context, s *settings, dir string) (store, error) {
	if s.beside == "" {
		return nil, nil
	}
	return startQuorate(ctx, "beside", s.beside, s, dir)
}

// openOne starts a single node.
func openOne(ctx context.Context, s *settings, dir string) (store, error) {
	return startOne(ctx, "quorate", s.quorate, s, dir)
}

// openOneBeside starts a single node of another Quorate program, if one is given.
func openOneBeside(ctx context.Context, s *settings, dir string) (store, error) {
	if s.beside == "" {
		return nil, nil
	}
	return startOne(ctx, "beside", s.beside, s, dir)
}

func startOne(ctx context.Context, title, name string, s *settings, dir string) (store, error) {
	program, p, err := find(title, name, dir)
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	q := &quorate{processes: p, title: title, program: program, version: firstLine(program, "version"),
		args: s.quorateArgs, bare: s.bare, nodes: []string{"http://127.0.0.1:" + ports[0]}}
	if err := p.start("one", program, append([]string{"run", "--node-id", "one", "--data-dir", "one", "--bind-address",
		"127.0.0.1", "--http-port", ports[0], "--gossip-port", ports[1], "--peer-port", ports[2], "--metrics-port", "0",
		"--enable-grpc=false", "--log-level", "warn"}, s.quorateArgs...)...); err != nil {
		return nil, err
	}
	c := quorateClientOf(q.nodes[0], q.bare)
	if err := until(ctx, func() error { return c.save(ctx, "ready", "yes") }); err != nil {
		defer p.end()
		return nil, p.failed(err)
	}
	return q, nil
}

func startQuorate(ctx context.Context, title, name string, s *settings, dir string) (store, error) {
	program, p, err := find(title, name, dir)
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(9)
	if err != nil {
		return nil, err
	}
	q := &quorate{processes: p, title: title, program: program, version: firstLine(program, "version"),
		args: s.quorateArgs, bare: s.bare}
	gossip := ports[3:6]
	join := "127.0.0.1:" + strings.Join(gossip, ",127.0.0.1:")
	for i := range 3 {
		id := "n" + strconv.Itoa(i+1)
		args := append([]string{"run", "--node-id", id, "--data-dir", id, "--join", join, "--bootstrap-expect", "3",
			"--bind-address", "127.0.0.1", "--http-port", ports[i],
			"--gossip-port", gossip[i], "--peer-port", ports[6+i], "--metrics-port", "0", "--enable-grpc=false",
			"--log-level", "warn"}, s.quorateArgs...)
		if err := p.start(id, program, args...); err != nil {
			p.end()
			return nil, err
		}
		q.nodes = append(q.nodes, "http://127.0.0.1:"+ports[i])
	}
	if err := until(ctx, func() error { return q.voters(ctx) }); err != nil {
		defer p.end()
		return nil, p.failed(err)
	}
	return q, nil
}

// voters returns nil when all three servers are voters in every group.
func (q *quorate) voters(ctx context.Context) error {
	for _, dir := range []string{"n1", "n2", "n3"} {
		out, err := exec.CommandContext(ctx, q.program, "status", "--json", "--data-dir",
			filepath.Join(q.dir, dir)).Output()
		if err != nil {
			return fmt.Errorf("quorate status of %s: %w", dir, err)
		}
		var status struct {
			Groups []struct {
				Servers []struct {
					Voter bool `json:"voter"`
				} `json:"servers"`
			} `json:"groups"`
		}
		if err := json.Unmarshal(out, &status); err != nil {
			return fmt.Errorf("quorate status of %s: %w", dir, err)
		}
		voters := 0
		for _, g := range status.Groups {
			for _, server := range g.Servers {
				if server.Voter {
					voters++
				}
			}
		}
		if groups := len(status.Groups); groups == 0 || voters != 3*groups {
			return fmt.Errorf("quorate: %s has %d voters in %d groups instead of 3 in each", dir, voters, groups)
		}
	}
	return nil
}

func (q *quorate) name() string { return q.title }
func (q *quorate) about() string {
	client := "net/http"
	if q.bare {
		client = "a bare one over HTTP/1.1"
	}
	return strings.TrimSpace(fmt.Sprintf("%s, nodes: %d, client %s %s", q.version, len(q.nodes), client,
		strings.Join(q.args, " ")))
}

func (q *quorate) clients(n int) ([]client, error) {
	for i := len(q.conns); i < n; i++ {
		q.conns = append(q.conns, quorateClientOf(q.nodes[i%len(q.nodes)], q.bare))
	}
	return q.conns[:n], nil
}

// quorateClientOf returns a client of the API at a URL. It is of type bare if minimal is true, and uses net/http
// otherwise.
func quorateClientOf(url string, minimal bool) *quorateClient {
	if minimal {
		return &quorateClient{(&bare{address: hostPort(url)}).fetch}
	}
	return &quorateClient{library(url)}
}

// quorateClient sends requests with fetch, which returns only successful responses.
type quorateClient struct {
	fetch func(ctx context.Context, method, path string, body []byte) ([]byte, error)
}

const quorateStore = "/v1.0/state/statestore"

func (c *quorateClient) save(ctx context.Context, key, value string) error {
	_, err := c.fetch(ctx, http.MethodPost, quorateStore,
		[]byte(`[{"key":"`+key+`","value":"`+value+`","options":{"consistency":"strong"}}]`))
	return err
}

func (c *quorateClient) lock(ctx context.Context, name string) error {
	owner := `{"resourceId":"` + name + `","lockOwner":"owner"`
	got, err := c.fetch(ctx, http.MethodPost, "/v1.0/lock/lockstore",
		fmt.Appendf(nil, `%s,"expiryInSeconds":%d}`, owner, int(lockTime.Seconds())))
	if err != nil || !bytes.Contains(got, []byte(`"success":true`)) {
		return cmp.Or(err, errLocked)
	}
	got, err = c.fetch(ctx, http.MethodPost, "/v1.0/unlock/lockstore", []byte(owner+"}"))
	if err != nil || !bytes.Contains(got, []byte(`"status":0`)) {
		return cmp.Or(err, errLocked)
	}
	return nil
}

func (c *quorateClient) read(ctx context.Context, key string, strong bool) (string, error) {
	level := "eventual"
	if strong {
		level = "strong"
	}
	body, err := c.fetch(ctx, http.MethodGet, quorateStore+"/"+key+"?consistency="+level, nil)
	return strings.Trim(string(body), `"`), err
}

// library returns a net/http client with its own connection.
func library(node string) func(context.Context, string, string, []byte) ([]byte, error) {
	c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1}}
	return func(ctx context.Context, method, path string, body []byte) ([]byte, error) {
		r, err := http.NewRequestWithContext(ctx, method, node+path, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		answer, err := c.Do(r)
		if err != nil {
			return nil, err
		}
		return success(answer, method, path)
	}
}

// success returns the body of a response, or an error if the status is not a success.
func success(answer *http.Response, method, path string) ([]byte, error) {
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s %s", method, path, answer.Status, got)
	}
	return got, err
}

// printSizes prints the resident memory of the first node and the size of the program. It omits the memory if it
// cannot read it.
func (q *quorate) printSizes(out io.Writer) error {
	program, err := os.Stat(q.program)
	if err != nil {
		return err
	}
	size := megabytes(float64(program.Size()) / 1e6)
	fmt.Fprintf(out, "quorate: the program has %s%s", size, exceeded(size, programGoal))
	if memory, ok := resident(q.cmds[0].Process.Pid); ok {
		fmt.Fprintf(out, ", the idle node %s%s", memory, exceeded(memory, memoryGoal))
	}
	fmt.Fprintln(out)
	return nil
}

// resident returns the resident memory of a process.
func resident(pid int) (megabytes, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, false
	}
	_, after, _ := strings.Cut(string(text), "VmRSS:")
	fields := strings.Fields(after)
	if len(fields) == 0 {
		return 0, false
	}
	kib, err := strconv.ParseFloat(fields[0], 64)
	return megabytes(kib * 1024 / 1e6), err == nil
}
