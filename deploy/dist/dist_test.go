package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

const testVersion = "0.0.1-test.1"

// built builds the files for Linux on this machine's architecture.
func built(t *testing.T) (dir string) {
	t.Helper()
	if testing.Short() {
		t.Skip("builds the program")
	}
	dir = t.TempDir()
	err := run(t.Context(), []string{"-version", testVersion, "-only", "linux/" + runtime.GOARCH, "-out", dir})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// unpack unpacks the program of an archive to binary, and returns the names of the files below the folder of the
// archive.
func unpack(t *testing.T, archive, binary string) (names []string) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for in := tar.NewReader(zip); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		folder, name, _ := strings.Cut(h.Name, "/")
		if folder+".tar.gz" != path.Base(archive) {
			t.Errorf("%s is outside of the folder", h.Name)
		}
		names = append(names, name)
		if name == "quorate" {
			out, err := os.OpenFile(binary, os.O_CREATE|os.O_WRONLY, os.FileMode(h.Mode)) //nolint:gosec // our archive
			if err != nil {
				t.Fatal(err)
			}
			_, err = io.Copy(out, in) //nolint:gosec // our archive
			if err = errors.Join(err, out.Close()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestDist_ArchiveSumsAndBillOfMaterials(t *testing.T) {
	dir := built(t)
	name := "quorate_" + testVersion + "_linux_" + runtime.GOARCH
	binary := filepath.Join(t.TempDir(), "quorate")
	names := unpack(t, filepath.Join(dir, name+".tar.gz"), binary)
	for _, want := range []string{"quorate", "quorate.cdx.json", "LICENSE", "systemd/quorate.service"} {
		if !slices.Contains(names, want) {
			t.Errorf("the archive has no %s: %q", want, names)
		}
	}
	t.Run("sums", func(t *testing.T) { checkSums(t, dir) })
	t.Run("bill of materials", func(t *testing.T) { checkBOM(t, filepath.Join(dir, name+".cdx.json"), binary) })
	t.Run("program", func(t *testing.T) {
		if runtime.GOOS != "linux" {
			t.Skip("the program is for Linux")
		}
		out, err := exec.CommandContext(t.Context(), binary, "version").CombinedOutput()
		if err != nil || !strings.Contains(string(out), testVersion) {
			t.Errorf("%v: %s", err, out)
		}
	})
	t.Run("image", func(t *testing.T) { runImage(t, filepath.Join(dir, name+".image.tar")) })
	t.Run("package", func(t *testing.T) { installPackage(t, dir) })
}

func checkSums(t *testing.T, dir string) {
	text, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) != 4 || len(entries) != len(lines)+1 {
		t.Errorf("%d sums of %d files", len(lines), len(entries))
	}
	for _, line := range lines {
		want, name, _ := strings.Cut(line, "  ")
		data, err := os.ReadFile(filepath.Join(dir, name))
		if sum := sha256.Sum256(data); err != nil || hex.EncodeToString(sum[:]) != want {
			t.Errorf("%s: %v, another sum", name, err)
		}
	}
}

// checkBOM compares the bill of materials with what is recorded in the program.
func checkBOM(t *testing.T, path, binary string) {
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(f, cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go")}
	for _, d := range info.Deps {
		want = append(want, "pkg:golang/"+d.Path+"@"+d.Version)
	}
	var got []string
	for _, c := range *bom.Components {
		got = append(got, c.PackageURL)
	}
	if !slices.Equal(got, want) || len(got) < 50 {
		t.Errorf("%d components, %d modules in the program", len(got), len(want))
	}
	if m := bom.Metadata.Component; m.Name != "quorate" || m.Version != testVersion {
		t.Errorf("it describes %s %s", m.Name, m.Version)
	}
}

// runImage compares the image with the Dockerfile of make image. If a Docker engine answers, it loads and runs the
// image.
func runImage(t *testing.T, path string) {
	img, err := tarball.ImageFromPath(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../container/Dockerfile.prebuilt")
	if err != nil {
		t.Fatal(err)
	}
	c := config.Config
	health := fmt.Sprintf("--interval=%.0fs --timeout=%.0fs --start-period=%.0fs --retries=%d", c.Healthcheck.
		Interval.Seconds(), c.Healthcheck.Timeout.Seconds(), c.Healthcheck.StartPeriod.Seconds(), c.Healthcheck.Retries)
	got := fmt.Sprintf("ENV %s\nUSER %s\nVOLUME %s\nEXPOSE %s\nHEALTHCHECK %s CMD [%q, %q]\nSTOPSIGNAL %s\n"+
		"ENTRYPOINT [%q]\nCMD [%q]\n", strings.Join(c.Env, " "), c.User,
		strings.Join(slices.Sorted(maps.Keys(c.Volumes)), " "),
		strings.Join(slices.Sorted(maps.Keys(c.ExposedPorts)), " "), health, c.Healthcheck.Test[1],
		c.Healthcheck.Test[2], c.StopSignal, c.Entrypoint[0], c.Cmd[0])
	if _, want, _ := strings.Cut(string(text), "/\nENV"); "ENV"+want != got {
		t.Errorf("the image has:\n%s\nthe Dockerfile has:\nENV%s", got, want)
	}
	if exec.CommandContext(t.Context(), "docker", "version").Run() != nil {
		t.Skip("no Docker engine answers")
	}
	docker := func(args ...string) string {
		out, err := exec.Command("docker", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("docker %q: %v: %s", args, err, out)
		}
		return string(out)
	}
	docker("load", "-i", path)
	tag := "quorate:" + testVersion
	defer docker("image", "rm", tag)
	if out := docker("run", "--rm", tag, "version"); !strings.HasPrefix(out, "quorate "+testVersion+" ") {
		t.Errorf("the image runs %q", out)
	}
	out := docker("run", "--rm", "--network", "none", "--read-only", tag, "config", "validate")
	if !strings.Contains(out, "valid") {
		t.Errorf("%s", out)
	}
}

// overlay shows the file system of this machine below $1/m. All changes are in memory, and are lost when the script
// ends.
const overlay = `
mount --make-rprivate /
mount -t tmpfs quorate "$1"
mkdir "$1/u" "$1/w" "$1/m"
mount -t overlay quorate -o "lowerdir=/,upperdir=$1/u,workdir=$1/w" "$1/m"
mount --bind /dev "$1/m/dev"
mount -t proc proc "$1/m/proc" || mount --rbind /proc "$1/m/proc"
rm -rf "$1/m/run/systemd"
`

// inside installs the package, updates it, and removes it.
const inside = `
dpkg -i /quorate.deb
/usr/bin/quorate version
getent passwd quorate
test "$(id -gn quorate)" = quorate
test -f /etc/quorate/components/statestore.yaml
grep -q /usr/bin/quorate /usr/lib/systemd/system/quorate.service
if grep -q /usr/local/bin /usr/lib/systemd/system/quorate.service; then exit 1; fi
sh -c 'command -v bash >/dev/null || exit 0; bash -n /usr/share/bash-completion/completions/quorate'
if command -v systemd-analyze; then systemd-analyze verify /usr/lib/systemd/system/quorate.service; fi
echo '# changed' >>/etc/quorate/quorate.yaml
dpkg -i /quorate.deb
grep -q '# changed' /etc/quorate/quorate.yaml
mkdir -p /var/lib/quorate/data
dpkg -r quorate
test ! -e /usr/bin/quorate
test ! -e /usr/lib/systemd/system/quorate.service
grep -q '# changed' /etc/quorate/quorate.yaml
dpkg -P quorate
test ! -e /etc/quorate/quorate.yaml
test -d /var/lib/quorate/data
getent passwd quorate
`

// installPackage installs the package with the real dpkg and the installed dependencies. An overlay over the file
// system keeps this machine unchanged.
func installPackage(t *testing.T, dir string) {
	for _, tool := range []string{"dpkg", "adduser", "unshare", "chroot"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
	script := func(text string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "unshare",
			append([]string{"-m", "sh", "-ec", overlay + text, "sh", t.TempDir()}, args...)...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := script(""); err != nil {
		t.Skipf("the overlay needs root and overlayfs: %v %s", err, out)
	}
	packages, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(packages) != 1 {
		t.Fatalf("%q %v", packages, err)
	}
	before := traces()
	out, err := script(`cp "$2" "$1/m/quorate.deb"; chroot "$1/m" sh -exc "$3"`, packages[0], inside)
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if after := traces(); after != before {
		t.Errorf("this machine was changed: %q", after)
	}
}

// traces returns what an installation on this machine would change.
func traces() string {
	var b strings.Builder
	for _, path := range []string{"/usr/bin/quorate", "/etc/quorate", "/usr/lib/systemd/system/quorate.service",
		"/var/lib/dpkg/info/quorate.list"} {
		_, err := os.Stat(path)
		fmt.Fprintf(&b, "%s %v\n", path, err == nil)
	}
	users, _ := os.ReadFile("/etc/passwd")
	return b.String() + fmt.Sprintf("%x", sha256.Sum256(users))
}

func TestDebianVersion_IsOrdered(t *testing.T) {
	for version, want := range map[string]string{
		"1.2.3": "1.2.3", "1.2.3-rc.1": "1.2.3~rc.1", "1.2.3-dev+1385e1d.dirty": "1.2.3~dev+1385e1d.dirty",
		"devel": "0~devel", "1385e1d": "0~1385e1d",
	} {
		if got := (release{version: version}).debianVersion(); got != want {
			t.Errorf("%s: %s, not %s", version, got, want)
		}
	}
}

func TestDist_NeedsVersion(t *testing.T) {
	if err := run(context.Background(), []string{"-out", t.TempDir()}); err == nil {
		t.Error("a release without a version was built")
	}
}
