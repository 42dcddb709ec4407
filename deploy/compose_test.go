package deploy_test

import (
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// composeFile is the content of compose.yaml, with exactly the keys that the file uses. docker compose and
// docker-compose 1.29 support all of them, except that the latter does not support "name".
type composeFile struct {
	Services   map[string]composeService
	Volumes    map[string]struct{}
	Extensions map[string]any `yaml:",inline"` // x-..., shared parts of services
}

type composeService struct {
	Image, Hostname, Restart string
	NetworkMode              string `yaml:"network_mode"`
	Command                  []string
	Environment              map[string]string
	Ports, Volumes           []string
	ReadOnly                 bool                         `yaml:"read_only"`
	CapDrop                  []string                     `yaml:"cap_drop"`
	SecurityOpt              []string                     `yaml:"security_opt"`
	StopGracePeriod          string                       `yaml:"stop_grace_period"`
	DependsOn                map[string]map[string]string `yaml:"depends_on"`
	Healthcheck              composeHealth
}

type composeHealth struct {
	Disable           bool
	Test              []string
	Interval, Timeout string
	StartPeriod       string `yaml:"start_period"`
	Retries           int
}

// compose decodes the file and fails the test if it has an unknown key. Tests start the services without a compose
// tool, so they would ignore such a key.
func compose(t *testing.T) composeFile {
	t.Helper()
	var c composeFile
	d := yaml.NewDecoder(strings.NewReader(read(t, "compose/compose.yaml")))
	d.KnownFields(true)
	if err := d.Decode(&c); err != nil {
		t.Fatal(err)
	}
	for key := range c.Extensions {
		if !strings.HasPrefix(key, "x-") {
			t.Fatalf("compose.yaml has the key %s", key)
		}
	}
	return c
}

func TestCompose_NodesUseExistingSettingsAndAreConfined(t *testing.T) {
	page, seen := read(t, "../docs/configuration.md"), 0
	for name, s := range compose(t).Services {
		if s.Environment["QUORATE_NODE_ID"] == "" {
			continue
		}
		seen++
		for variable := range s.Environment {
			if !strings.Contains(page, "`"+variable+"`") {
				t.Errorf("%s: %s is no setting", name, variable)
			}
		}
		if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) {
			t.Errorf("%s is not confined", name)
		}
	}
	if seen != 5 {
		t.Errorf("%d nodes", seen)
	}
}

// TestCompose_BothProgramsReadTheFile checks the file with each installed compose tool: the Docker plug-in and
// docker-compose. It needs no Docker engine.
func TestCompose_BothProgramsReadTheFile(t *testing.T) {
	tools := composeTools(t)
	if len(tools) == 0 {
		t.Skip("neither docker compose nor docker-compose is installed")
	}
	if env := read(t, "compose/.env"); !strings.Contains(env, "\nCOMPOSE_PROJECT_NAME=quorate\n") {
		t.Error("compose/.env does not name the project")
	}
	want := slices.Sorted(maps.Keys(compose(t).Services))
	for _, tool := range tools {
		args := append(slices.Clone(tool[1:]), "-f", "compose.yaml", "config", "--services")
		cmd := exec.CommandContext(t.Context(), tool[0], args...)
		cmd.Dir = "compose"
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.Output()
		got := strings.Fields(string(out))
		slices.Sort(got)
		if err != nil || errs.Len() > 0 || !slices.Equal(got, want) {
			t.Errorf("%q: %v %s: services %q, want %q", tool, err, errs.String(), got, want)
		}
	}
}

func TestCompose_ReferencesExist(t *testing.T) {
	c := compose(t)
	for name, s := range c.Services {
		for _, v := range s.Volumes {
			source, _, _ := strings.Cut(v, ":")
			if strings.HasPrefix(source, ".") {
				if files, err := filepath.Glob(filepath.Join("compose", source)); err != nil || len(files) != 1 {
					t.Errorf("%s: there is no %s", name, source)
				}
			} else if _, ok := c.Volumes[source]; !ok {
				t.Errorf("%s: no volume %s", name, source)
			}
		}
		if owner, ok := strings.CutPrefix(s.NetworkMode, "service:"); ok {
			if _, ok := c.Services[owner]; !ok {
				t.Errorf("%s: no service %s", name, owner)
			}
		}
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") {
				t.Errorf("%s: %s is open to the network", name, p)
			}
		}
	}
}

func TestCompose_PrometheusScrapesEveryNode(t *testing.T) {
	config := read(t, "compose/prometheus.yml")
	for name, s := range compose(t).Services {
		if s.Environment["QUORATE_NODE_ID"] == "" {
			continue
		}
		host := name
		if owner, ok := strings.CutPrefix(s.NetworkMode, "service:"); ok {
			host = owner
		}
		if !strings.Contains(config, host+":9090") {
			t.Errorf("%s is not scraped", name)
		}
	}
}
