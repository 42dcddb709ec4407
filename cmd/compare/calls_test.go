package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestProxy_ForwardsCalls(t *testing.T) {
	app, err := startApplication()
	if err != nil {
		t.Fatal(err)
	}
	defer app.end()
	ports, err := freePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	f := &forwarder{processes: &processes{}, address: "127.0.0.1:" + ports[0], path: "/", app: app}
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() { ended <- serveProxy(ctx, f.address+",127.0.0.1:"+app.port) }()
	if _, err := f.started(ctx); err != nil {
		t.Error(err)
	}
	value := strings.Repeat("v", 256)
	if err := fill(ctx, f, 1, value); err != nil {
		t.Error(err)
	}
	var got figures
	if err := load(ctx, &got, f, call, 2, 1, value, time.Millisecond); err != nil || got.count == 0 {
		t.Errorf("%d calls, %v", got.count, err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// The output of etcd's load program.
const toolOutput = `
Summary:
  Total:	2.0000 secs.
  Slowest:	0.0500 secs.
  Requests/sec:	500.0000

Latency distribution:
  50% in 0.0020 secs.
  99% in 0.0100 secs.
  99.9% in 0.0400 secs.
`

func TestEtcdTool_IsReadAndCalled(t *testing.T) {
	program := filepath.Join(t.TempDir(), "benchmark")
	script := "#!/bin/sh\necho \"$@\" >>" + program + ".args\ncat <<'E'\n" + toolOutput + "E\n"
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	e := &etcdTool{&etcd{processes: &processes{}, members: []string{"http://a", "http://b"}}, program}
	var f figures
	if err := load(t.Context(), &f, e, strongRead, 64, 100, "value", time.Minute); err != nil {
		t.Fatal(err)
	}
	// The first, short run reaches 1000 requests per second, so the run of a minute makes 60,000 requests.
	if f.count != 60000 || f.rate() != 30000 || f.quantile(.5).Round(time.Millisecond) != 2*time.Millisecond ||
		f.quantile(.99).Round(time.Millisecond) != 10*time.Millisecond {
		t.Errorf("%d requests, %s", f.count, &f)
	}
	args, err := os.ReadFile(program + ".args")
	if err != nil {
		t.Fatal(err)
	}
	for _, total := range []int{toolWarmUp, 60000} {
		want := fmt.Sprintf("--clients 64 --conns 8 range k0 --consistency l --total %d\n", total)
		if !strings.Contains(string(args), "--endpoints http://a,http://b "+want) {
			t.Errorf("%s was not called with %s", args, want)
		}
	}
}

func TestEtcdTool_RefusesOtherOutput(t *testing.T) {
	if err := readTool(&figures{}, "usage: benchmark", 10); err == nil {
		t.Error("an output without figures was accepted")
	}
}

func TestTables_LeaveOutMissingPrograms(t *testing.T) {
	s, err := parse([]string{"-nginx", "no-such-nginx", "-daprd", "no-such-daprd", "-etcd-tool", "no-such-tool"},
		io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	s.app = &application{port: "1"}
	for name, open := range map[string]opener{"nginx": callNginxTwice, "daprd": callDaprd, "etcd-tool": openEtcdTool} {
		_, err := open(t.Context(), s, t.TempDir())
		var missing *missingError
		if !errors.As(err, &missing) || missing.name != name {
			t.Errorf("%s: %v", name, err)
		}
	}
}
