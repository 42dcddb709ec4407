package deploy_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Every container, volume and network of a test has this label with the id of its lab, and a label
// with its creation time. The tests never touch objects without them.
const (
	labLabel  = "quorate.test"
	timeLabel = "quorate.test.made"
	stale     = time.Hour // older objects were left by a test that was killed
)

// lab runs services of compose.yaml on a Docker engine, with locally built images. It uses only
// plain docker commands, so that no compose tool is needed. The services are defined only in the
// file.
type lab struct {
	t      *testing.T
	id     string // id of this lab, because several may run at the same time
	file   composeFile
	images map[string]string // variable in the file -> image
	mounts map[string]string // path in a container -> text that replaces the mounted file
}

// docker runs one command and returns its output.
func (l *lab) docker(args ...string) (string, error) {
	// also works during cleanup, after the context of the test has ended
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.t.Context()), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "docker", args...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (l *lab) must(args ...string) string {
	l.t.Helper()
	out, err := l.docker(args...)
	if err != nil {
		l.t.Fatalf("docker %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// name returns the name of a service, a volume or an image in the engine.
func (l *lab) name(what string) string { return "quorate-test-" + l.id + "-" + what }

func (l *lab) labels() []string {
	return []string{"--label", labLabel + "=" + l.id, "--label",
		timeLabel + "=" + strconv.FormatInt(time.Now().Unix(), 10)}
}

// engine returns a lab, or skips the test with a reason if nothing can run.
func engine(t *testing.T) *lab {
	t.Helper()
	id := make([]byte, 6)
	_, _ = rand.Read(id) // Read never returns an error
	l := &lab{t: t, id: hex.EncodeToString(id), file: compose(t), images: map[string]string{},
		mounts: map[string]string{}}
	if testing.Short() {
		t.Skip("-short")
	}
	if _, err := exec.LookPath("docker"); err != nil {
		t.Skip("docker is not installed")
	}
	if out, err := l.docker("info", "--format", "{{.ServerVersion}}"); err != nil {
		t.Skipf("no Docker engine answers: %s", out)
	}
	l.sweep()
	t.Cleanup(l.clear)
	if out, err := l.docker(append(append([]string{"network", "create"}, l.labels()...),
		l.name("net"))...); err != nil {
		t.Skipf("this Docker engine makes no networks: %s", out)
	}
	return l
}

// kind is one kind of object that a test creates.
type kind struct {
	list, remove []string // commands
	labels       string   // path of the labels in the output of inspect
}

// kinds returns the kinds in the order in which they can be removed.
func kinds() []kind {
	return []kind{
		{[]string{"ps", "-aq"}, []string{"rm", "-f", "-v"}, ".Config.Labels"},
		{[]string{"volume", "ls", "-q"}, []string{"volume", "rm", "-f"}, ".Labels"},
		{[]string{"network", "ls", "-q"}, []string{"network", "rm"}, ".Labels"},
		{[]string{"image", "ls", "-q"}, []string{"image", "rm", "-f"}, ".Config.Labels"},
	}
}

// clear removes all objects of the lab. After a failure it first prints their logs.
func (l *lab) clear() {
	if l.t.Failed() {
		names, _ := l.docker("ps", "-a", "--filter", "label="+labLabel+"="+l.id, "--format", "{{.Names}}")
		for _, name := range strings.Fields(names) {
			logs, _ := l.docker("logs", "--tail", "20", name)
			l.t.Logf("%s:\n%s", name, logs)
		}
	}
	for _, k := range kinds() {
		out, err := l.docker(append(k.list, "--filter", "label="+labLabel+"="+l.id)...)
		if err == nil && out != "" {
			out, err = l.docker(append(k.remove, strings.Fields(out)...)...)
		}
		if err != nil {
			l.t.Errorf("what %q lists of this test remains: %v: %s", k.list, err, out)
		}
	}
}

// sweep removes objects of tests that were killed long ago.
func (l *lab) sweep() {
	for _, k := range kinds() {
		ids, err := l.docker(append(k.list, "--filter", "label="+timeLabel)...)
		if err != nil {
			continue
		}
		for _, id := range strings.Fields(ids) {
			text, err := l.docker("inspect", "-f", `{{index `+k.labels+` "`+timeLabel+`"}}`, id)
			if made, bad := strconv.ParseInt(text, 10, 64); err == nil && bad == nil &&
				time.Since(time.Unix(made, 0)) > stale {
				_, _ = l.docker(append(k.remove, id)...) // another sweep may have removed it
			}
		}
	}
}

// build builds the images of the product: the binary alone, and the demo applications.
func (l *lab) build() {
	l.t.Helper()
	l.images["QUORATE_IMAGE"], l.images["SHOP_IMAGE"] = l.name("quorate"), l.name("shop")
	l.make("image", "shop-image", "IMAGE="+l.name("quorate"), "SHOPIMAGE="+l.name("shop"))
	if out, err := l.docker(append(append([]string{"run", "--rm", "--network", l.name("net")}, l.labels()...),
		l.name("quorate"), "version")...); err != nil {
		// an error of docker, not of the program
		if code := new(exec.ExitError); errors.As(err, &code) && code.ExitCode() == 125 {
			l.t.Skipf("this Docker engine starts no containers: %s", out)
		}
		l.t.Fatalf("the image does not run: %v\n%s", err, out)
	}
}

func (l *lab) make(args ...string) {
	l.t.Helper()
	c := exec.CommandContext(l.t.Context(), "make",
		append(args, "BIN="+l.t.TempDir(), "DOCKERFLAGS="+strings.Join(l.labels(), " "))...)
	c.Dir = ".."
	if out, err := c.CombinedOutput(); err != nil {
		l.t.Fatalf("make %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// up starts a service of the compose file, with additional flags for docker run.
func (l *lab) up(service string, more ...string) {
	l.t.Helper()
	s := l.file.Services[service]
	args := append([]string{"create", "--name", l.name(service)}, l.labels()...)
	args = append(args, s.flags(l, service)...)
	for _, v := range s.Volumes {
		if source, target, _ := strings.Cut(v, ":"); !strings.HasPrefix(source, ".") {
			l.volume(source)
			args = append(args, "-v", l.name(source)+":"+target)
		}
	}
	args = append(append(args, more...), l.checked(l.image(s.Image), service, s.Healthcheck))
	l.must(append(args, s.Command...)...)
	l.copyIn(service, s)
	l.must("start", l.name(service))
}

func (l *lab) volume(name string) {
	l.t.Helper()
	if _, err := l.docker("volume", "inspect", l.name(name)); err != nil {
		l.must(append(append([]string{"volume", "create"}, l.labels()...), l.name(name))...)
	}
}

// copyIn copies the files of a service into its container. They are not mounted, because the engine
// may not see this folder.
func (l *lab) copyIn(service string, s composeService) {
	l.t.Helper()
	for _, v := range s.Volumes {
		source, target, _ := strings.Cut(strings.TrimSuffix(v, ":ro"), ":")
		if !strings.HasPrefix(source, ".") {
			continue
		}
		text, ok := l.mounts[target]
		if !ok {
			text = read(l.t, filepath.Join("compose", source))
		}
		file := filepath.Join(l.t.TempDir(), filepath.Base(target))
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil { //nolint:gosec // another user reads it
			l.t.Fatal(err)
		}
		l.must("cp", file, l.name(service)+":"+target)
	}
}

// image returns the image for a variable of the file: ${QUORATE_IMAGE:-quorate}.
func (l *lab) image(text string) string {
	variable, _, _ := strings.Cut(strings.TrimPrefix(text, "${"), ":-")
	image, ok := l.images[variable]
	if !ok {
		l.t.Fatalf("no image was made for %s", text)
	}
	return image
}

// flags returns the flags of docker run for a service.
func (s composeService) flags(l *lab, service string) (out []string) {
	switch owner, shared := strings.CutPrefix(s.NetworkMode, "service:"); {
	case shared:
		out = append(out, "--network", "container:"+l.name(owner))
	case s.NetworkMode != "":
		out = append(out, "--network", s.NetworkMode)
	default:
		out = append(out, "--network", l.name("net"), "--network-alias", service)
	}
	if s.Hostname != "" {
		out = append(out, "--hostname", s.Hostname)
	}
	if s.ReadOnly {
		out = append(out, "--read-only")
	}
	for _, c := range s.CapDrop {
		out = append(out, "--cap-drop", c)
	}
	for _, o := range s.SecurityOpt {
		out = append(out, "--security-opt", o)
	}
	for _, k := range slices.Sorted(maps.Keys(s.Environment)) {
		out = append(out, "-e", k+"="+s.Environment[k])
	}
	for _, p := range s.Ports { // any free port instead of the one in the file
		out = append(out, "-p", "127.0.0.1::"+p[strings.LastIndexByte(p, ':')+1:])
	}
	if s.Healthcheck.Disable {
		out = append(out, "--no-healthcheck")
	}
	return out
}

// checked returns an image with the health check of a service. docker run only supports checks that
// need a shell, which these images do not have.
func (l *lab) checked(image, service string, h composeHealth) string {
	l.t.Helper()
	if len(h.Test) == 0 {
		return image // the image has its own check
	}
	test, err := json.Marshal(h.Test[1:])
	if err != nil {
		l.t.Fatal(err)
	}
	name := image + "-" + service
	file := fmt.Sprintf("FROM %s\nHEALTHCHECK --interval=%s --timeout=%s --start-period=%s --retries=%d CMD %s\n",
		image, h.Interval, h.Timeout, cmp.Or(h.StartPeriod, "1ms"), h.Retries, test) // docker refuses 0s
	c := exec.CommandContext(l.t.Context(), "docker",
		append(append([]string{"build", "-q", "-t", name}, l.labels()...), "-")...)
	c.Stdin = strings.NewReader(file)
	if out, err := c.CombinedOutput(); err != nil {
		l.t.Fatalf("docker build of %q: %v\n%s", file, err, out)
	}
	return name
}

// down stops a service as defined in the file, and removes its container. Its volumes stay.
func (l *lab) down(service string) {
	l.t.Helper()
	grace, err := time.ParseDuration(cmp.Or(l.file.Services[service].StopGracePeriod, "10s"))
	if err != nil {
		l.t.Fatal(err)
	}
	l.must("stop", "-t", strconv.Itoa(int(grace.Seconds())), l.name(service))
	l.must("rm", l.name(service))
}

// cut disconnects a service from the network. Method plug reconnects it under its name.
func (l *lab) cut(service string) {
	l.t.Helper()
	l.must("network", "disconnect", l.name("net"), l.name(service))
}

func (l *lab) plug(service string) {
	l.t.Helper()
	l.must("network", "connect", "--alias", service, l.name("net"), l.name(service))
}

// url returns the URL of a published port of a service.
func (l *lab) url(service, port string) string {
	l.t.Helper()
	first, _, _ := strings.Cut(l.must("port", l.name(service), port+"/tcp"), "\n")
	return "http://" + first
}

// eventually waits until ok returns nil.
func (l *lab) eventually(what string, within time.Duration, ok func() error) {
	l.t.Helper()
	end := time.Now().Add(within)
	for {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			l.t.Fatalf("%s: not within %v: %v", what, within, err)
		}
		<-time.After(200 * time.Millisecond)
	}
}

// health checks nodes inside their containers, as a probe does.
func (l *lab) health(flag string, services ...string) func() error {
	return func() error {
		for _, s := range services {
			if out, err := l.docker("exec", l.name(s), "/quorate", "health", flag); err != nil {
				return fmt.Errorf("%s: %s", s, out)
			}
		}
		return nil
	}
}

// healthy checks the results of the health checks of the file.
func (l *lab) healthy(services ...string) func() error {
	return func() error {
		for _, s := range services {
			if state := l.must("inspect", "-f", "{{.State.Health.Status}}", l.name(s)); state != "healthy" {
				return fmt.Errorf("%s is %s", s, state)
			}
		}
		return nil
	}
}

// patience is how long a cluster in containers may take on a slow machine.
const patience = 3 * time.Minute

// start starts the demo without Prometheus and Grafana, and waits until it is healthy.
func (l *lab) start(more ...string) (servers, sidecars []string) {
	l.t.Helper()
	l.up("token")
	l.eventually("the token is made", patience, func() error {
		if code := l.must("inspect", "-f", "{{.State.Status}} {{.State.ExitCode}}",
			l.name("token")); code != "exited 0" {
			return errors.New(code)
		}
		return nil
	})
	begin := time.Now()
	servers, sidecars = []string{"n1", "n2", "n3"}, []string{"orders-sidecar", "web-sidecar"}
	for _, s := range servers {
		l.up(s, more...)
	}
	for _, s := range []string{"orders", "web", "orders-sidecar", "web-sidecar"} {
		l.up(s)
	}
	l.eventually("everything is healthy", patience,
		l.healthy(append(append(slices.Clone(servers), sidecars...), "orders", "web")...))
	l.t.Logf("healthy after %v", time.Since(begin).Round(100*time.Millisecond))
	return servers, sidecars
}
