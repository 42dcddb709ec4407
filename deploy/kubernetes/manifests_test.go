// Package kubernetes_test checks the manifests and the Helm chart against the published types of the Kubernetes API.
package kubernetes_test

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/yaml"
	strict "sigs.k8s.io/yaml"
)

// objects decodes every document of every manifest. An unknown or duplicate field is an error.
func objects(t *testing.T) (out []any) {
	t.Helper()
	files, err := filepath.Glob("*.yaml")
	if err != nil || len(files) < 2 {
		t.Fatalf("%v %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		docs := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
		for {
			doc, err := docs.Read()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			out = append(out, decode(t, file, doc))
		}
	}
	return out
}

func decode(t *testing.T, file string, doc []byte) any {
	t.Helper()
	var kind metav1.TypeMeta
	if err := strict.Unmarshal(doc, &kind); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	types := map[string]any{
		"v1 ServiceAccount":             new(corev1.ServiceAccount),
		"v1 ConfigMap":                  new(corev1.ConfigMap),
		"v1 Service":                    new(corev1.Service),
		"policy/v1 PodDisruptionBudget": new(policyv1.PodDisruptionBudget),
		"apps/v1 StatefulSet":           new(appsv1.StatefulSet),
		"apps/v1 Deployment":            new(appsv1.Deployment),
	}
	into, ok := types[kind.APIVersion+" "+kind.Kind]
	if !ok {
		t.Fatalf("%s: no type for %s %s", file, kind.APIVersion, kind.Kind)
	}
	if err := strict.UnmarshalStrict(doc, into); err != nil {
		t.Fatalf("%s: %s: %v", file, kind.Kind, err)
	}
	return into
}

func find[T any](t *testing.T) *T {
	t.Helper()
	for _, o := range objects(t) {
		if found, ok := o.(*T); ok {
			return found
		}
	}
	t.Fatalf("no %T in the manifests", new(T))
	return nil
}

func TestManifests_DecodeStrictly(t *testing.T) {
	if n := len(objects(t)); n != 6 {
		t.Errorf("%d objects", n)
	}
}

func TestDecoder_RefusesUnknownFields(t *testing.T) {
	doc := "apiVersion: policy/v1\nkind: PodDisruptionBudget\nspec: {maxUnavailble: 1}\n"
	if err := strict.UnmarshalStrict([]byte(doc), new(policyv1.PodDisruptionBudget)); err == nil {
		t.Error("a field with a typing error was taken")
	}
}

func TestServers_AreSelectedByServiceAndBudget(t *testing.T) {
	set, service, budget := find[appsv1.StatefulSet](t), find[corev1.Service](t), find[policyv1.PodDisruptionBudget](t)
	pod := labels.Set(set.Spec.Template.Labels)
	if !labels.SelectorFromSet(service.Spec.Selector).Matches(pod) || service.Name != set.Spec.ServiceName {
		t.Error("the service does not select the servers")
	}
	for _, s := range []*metav1.LabelSelector{budget.Spec.Selector, set.Spec.Selector} {
		if selector, err := metav1.LabelSelectorAsSelector(s); err != nil || !selector.Matches(pod) {
			t.Errorf("%v does not select the servers: %v", s, err)
		}
	}
	if !service.Spec.PublishNotReadyAddresses || service.Spec.ClusterIP != corev1.ClusterIPNone {
		t.Error("servers could not find each other before they are ready")
	}
	if value(set.Spec.Template.Spec.Containers[0], "QUORATE_BOOTSTRAP_EXPECT") != "3" || *set.Spec.Replicas != 3 {
		t.Error("replicas and bootstrap-expect differ")
	}
	if budget.Spec.MaxUnavailable.IntValue() != 1 {
		t.Error("of three voters more than one may be away")
	}
}

// quorates returns the containers that run quorate, with their pods.
func quorates(t *testing.T) map[string]struct {
	pod corev1.PodSpec
	c   corev1.Container
} {
	t.Helper()
	out := map[string]struct {
		pod corev1.PodSpec
		c   corev1.Container
	}{}
	for name, pod := range map[string]corev1.PodSpec{"server": find[appsv1.StatefulSet](t).Spec.Template.Spec,
		"sidecar": find[appsv1.Deployment](t).Spec.Template.Spec} {
		i := slices.IndexFunc(append(pod.InitContainers, pod.Containers...),
			func(c corev1.Container) bool { return c.Name == "quorate" })
		out[name] = struct {
			pod corev1.PodSpec
			c   corev1.Container
		}{pod, append(pod.InitContainers, pod.Containers...)[i]}
	}
	return out
}

func TestManifestContainers_AreConfinedAndProbed(t *testing.T) {
	for name, q := range quorates(t) {
		s := q.c.SecurityContext
		if s == nil || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem ||
			!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("%s: %+v", name, s)
		}
		if *q.pod.AutomountServiceAccountToken || *q.pod.EnableServiceLinks ||
			q.pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s: the pod is not confined", name)
		}
		for _, p := range []*corev1.Probe{q.c.StartupProbe, q.c.LivenessProbe} {
			if p == nil || p.Exec == nil || !strings.HasPrefix(strings.Join(p.Exec.Command, " "),
				"/quorate health --") || p.TimeoutSeconds < 4 {
				t.Errorf("%s: probe %+v: it must ask from inside, and outwait the command", name, p)
			}
		}
		if !slices.Contains(q.c.LivenessProbe.Exec.Command, "--live") {
			t.Errorf("%s: a lost quorum would restart it", name)
		}
	}
}

// An update stops the next server only when the previous one is ready, so readiness must require a vote. With --ready
// alone, the update would continue while a server with an empty volume is not a voter yet. The cluster would then lose
// its majority. Servers must start in parallel, because each waits for the others to become a voter.
func TestRollingUpdate_WaitsForTheVoteOfEachServer(t *testing.T) {
	set := find[appsv1.StatefulSet](t)
	if p := quorates(t)["server"].c.ReadinessProbe; p == nil ||
		!slices.Equal(p.Exec.Command, []string{"/quorate", "health", "--placed"}) {
		t.Errorf("the readiness probe is %+v", p)
	}
	if set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement ||
		set.Spec.UpdateStrategy.Type != appsv1.RollingUpdateStatefulSetStrategyType {
		t.Errorf("%s, %s", set.Spec.PodManagementPolicy, set.Spec.UpdateStrategy.Type)
	}
}

func TestMounts_HaveVolumes(t *testing.T) {
	claims := map[string]bool{}
	for _, c := range find[appsv1.StatefulSet](t).Spec.VolumeClaimTemplates {
		claims[c.Name] = true
	}
	for name, q := range quorates(t) {
		for _, m := range q.c.VolumeMounts {
			if !claims[m.Name] && !slices.ContainsFunc(q.pod.Volumes,
				func(v corev1.Volume) bool { return v.Name == m.Name }) {
				t.Errorf("%s: no volume %s", name, m.Name)
			}
		}
	}
}

// Every variable must be a setting of the configuration page.
func TestVariables_AreSettings(t *testing.T) {
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, q := range quorates(t) {
		for _, e := range q.c.Env {
			if !bytes.Contains(page, []byte("`"+e.Name+"`")) {
				t.Errorf("%s: %s is no setting", name, e.Name)
			}
		}
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func value(c corev1.Container, name string) string {
	for _, e := range c.Env {
		if e.Name == name {
			return e.Value
		}
	}
	return ""
}
