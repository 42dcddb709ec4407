package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
)

func TestConfigPrint_ShowsValueAndSource(t *testing.T) {
	c := newConsole(t)
	file := filepath.Join(c.home, "q.yaml")
	if err := os.WriteFile(file, []byte("logLevel: debug\napps:\n- id: b\n  port: 80\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.env = []string{"NAMESPACE=prod"}
	r := c.run("config", "print", "-app-id", "orders", "--config-file", file, "--data-dir", "relative")
	for _, want := range []string{"app-id orders flag --app-id", "namespace prod env NAMESPACE",
		"log-level debug file " + file + ":1", "http-port 3500 default", "apps: b http, port 80, httpPort 0 file"} {
		if !strings.Contains(strings.Join(strings.Fields(r.stdout), " "), want) {
			t.Errorf("%q is missing in:\n%s", want, r.stdout)
		}
	}
	if strings.Contains(r.stdout, " relative ") {
		t.Error("the data directory is not absolute")
	}
	var reports []struct {
		Name, Value, Key string
		Source           settings.Source
	}
	if err := json.Unmarshal([]byte(c.run("config", "print", "--json", "--http-port", "7").stdout),
		&reports); err != nil {
		t.Fatal(err)
	}
	for _, r := range reports {
		if r.Name == "http-port" && (r.Value != "7" || r.Key != "httpPort" || r.Source.Where != "--http-port") {
			t.Errorf("%+v", r)
		}
	}
}

func TestConfigValidate(t *testing.T) {
	c := newConsole(t)
	c.want(0, "the configuration is valid\n", "", "config", "validate")
	c.want(0, "warning: ignored flags, which have no effect in Quorate: --mode\nthe configuration is valid\n", "",
		"config",
		"validate", "--mode", "x")
	c.check = func(_ context.Context, config node.Config) ([]string, error) {
		return []string{"w: odd"}, errors.Join(fault.New(fault.Invalid, "loader.Read",
			config.Components.Paths[0]+": bad"), fault.New(fault.Invalid, "loader.Read", "worse"))
	}
	c.want(1, "warning: w: odd\nproblem: --app-id \"a b\" is refused (use letters, digits, - and _, at most 128)\n"+
		"problem: res: bad\nproblem: worse\n", "3 problems found",
		"config", "validate", "--resources-path", "res", "--app-id", "a b")
	c.env = []string{"QUORATE_HTTP_PORT=x"}
	c.want(1, "problem: QUORATE_HTTP_PORT \"x\" is refused (give a port from 0 to 65535; 0 picks a free one)\n",
		"1 problem found", "config", "validate")
}

func TestConfigValidate_JSON(t *testing.T) {
	c := newConsole(t)
	for want, args := range map[bool][]string{true: nil, false: {"--app-id", "a b"}} {
		r := c.run(append([]string{"config", "validate", "--json"}, args...)...)
		var v struct {
			Valid              bool
			Problems, Warnings []string
		}
		if err := json.Unmarshal([]byte(r.stdout), &v); err != nil || v.Valid != want || (r.code == 0) != want ||
			v.Problems == nil || v.Warnings == nil {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

func TestVersion(t *testing.T) {
	c := newConsole(t)
	if r := c.run("version"); !strings.HasPrefix(r.stdout, "quorate v1.2.3 go1.") ||
		!strings.HasSuffix(r.stdout, " commit abc\n") {
		t.Errorf("%+v", r)
	}
	var v struct{ Version, Commit, Go, OS, Arch string }
	if err := json.Unmarshal([]byte(c.run("version", "--json").stdout), &v); err != nil || v.Version != "v1.2.3" ||
		v.Commit != "abc" || v.OS == "" {
		t.Errorf("%+v, %v", v, err)
	}
}
