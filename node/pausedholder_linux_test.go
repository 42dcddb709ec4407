package node_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/node/nodetest"
)

// holderEnv is the environment variable with the address of the API, for the process that is paused.
const holderEnv = "QUORATE_TEST_HOLDER"

// postLocked posts a body to the API, with the lock tokens if there are any. It returns the status, the token of a
// granted lock, and the body of the answer.
func postLocked(ctx context.Context, api, path, body, tokens string) (status int, token, text string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+api+path, strings.NewReader(body))
	if err != nil {
		return 0, "", "", err
	}
	if tokens != "" {
		req.Header.Set("Quorate-Lock", tokens)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header.Get("Quorate-Lock-Revision"), string(b), err
}

// TestPausedHolder_Process runs in the process that is paused: it acquires a lock, waits for a line, and writes.
func TestPausedHolder_Process(t *testing.T) {
	api := os.Getenv(holderEnv)
	if api == "" {
		t.Skip("runs as a process of TestPausedHolder_FencedWriteIsRefused")
	}
	_, token, _, err := postLocked(t.Context(), api, "/v1.0/lock/lockstore",
		`{"resourceId":"printer","lockOwner":"paused","expiryInSeconds":1}`, "")
	testutil.Must(t, err)
	fmt.Println("token", token)
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	const body = `[{"key":"queue","value":"of the paused one"}]`
	ordinary, _, _, err := postLocked(t.Context(), api, "/v1.0/state/ordinary", body, "")
	testutil.Must(t, err)
	fenced, _, text, err := postLocked(t.Context(), api, "/v1.0/state/statestore", body, "lockstore/printer@"+token)
	testutil.Must(t, err)
	fmt.Println("written", ordinary, fenced, strings.Contains(text, "lock_lost"))
}

// A process is paused for longer than its lock is valid, continues and writes. A store that does not check lock tokens
// overwrites the value of the new owner. The store that the lock protects refuses the write.
func TestPausedHolder_FencedWriteIsRefused(t *testing.T) {
	t.Parallel()
	c := nodetest.Config(t)
	c.Components.Paths = nodetest.Resources(t, map[string]string{
		"ordinary.yaml": nodetest.Store("ordinary", "state.in-memory", ""),
		"state.yaml":    nodetest.Store("statestore", "state.raft", ""),
	})
	n := nodetest.Open(t, c)
	api := n.Addresses().API[0]

	holder := exec.Command(os.Args[0], "-test.run", "^TestPausedHolder_Process$", //nolint:gosec,noctx // itself
		"-test.v")
	holder.Env = append(os.Environ(), holderEnv+"="+api)
	stdin, err := holder.StdinPipe()
	testutil.Must(t, err)
	stdout, err := holder.StdoutPipe()
	testutil.Must(t, err)
	testutil.Must(t, holder.Start())
	t.Cleanup(func() {
		_ = holder.Process.Kill()
		_ = holder.Wait()
	})
	lines := bufio.NewScanner(stdout)
	until := func(word string) string {
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), word) {
				return lines.Text()
			}
		}
		t.Fatalf("the process of the holder ended without %q", word)
		return ""
	}
	old := strings.TrimPrefix(until("token "), "token ")
	testutil.Must(t, holder.Process.Signal(syscall.SIGSTOP))
	testutil.Eventually(t, func() error { // a signal takes a moment to stop all threads
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", holder.Process.Pid))
		if err == nil && !strings.Contains(string(state), "\nState:\tT") {
			err = fmt.Errorf("the process is not stopped: %s", state)
		}
		return err
	})
	_, err = io.WriteString(stdin, "write\n")
	testutil.Must(t, err)

	status, token, text, err := postLocked(t.Context(), api, "/v1.0/lock/lockstore?wait=1m",
		`{"resourceId":"printer","lockOwner":"next","expiryInSeconds":3600}`, "")
	if err != nil || status != http.StatusOK || !strings.Contains(text, "true") || token == old {
		t.Fatalf("the next owner: %d %s, token %s after %s, %v", status, text, token, old, err)
	}
	const body = `[{"key":"queue","value":"of the next one"}]`
	for store, tokens := range map[string]string{"ordinary": "", "statestore": "lockstore/printer@" + token} {
		status, _, text, err = postLocked(t.Context(), api, "/v1.0/state/"+store, body, tokens)
		if err != nil || status != http.StatusNoContent {
			t.Fatalf("a write of the next owner: %d %s, %v", status, text, err)
		}
	}
	testutil.Must(t, holder.Process.Signal(syscall.SIGCONT))
	if got := until("written "); got != "written 204 412 true" {
		t.Errorf("the process of the holder has %q", got)
	}
	for store, want := range map[string]string{"ordinary": `"of the paused one"`, "statestore": `"of the next one"`} {
		resp, err := http.Get("http://" + api + "/v1.0/state/" + store + "/queue") //nolint:noctx // a test
		testutil.Must(t, err)
		value, err := io.ReadAll(resp.Body)
		testutil.Must(t, err)
		_ = resp.Body.Close()
		if string(value) != want {
			t.Errorf("%s has %s, want %s", store, value, want)
		}
	}
}
