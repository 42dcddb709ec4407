package kubernetes_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/yaml"
	strict "sigs.k8s.io/yaml"
)

const chartPath = "../helm/quorate"

// render renders the chart as the release quorate in the namespace quorate. It decodes the objects strictly.
func render(t *testing.T, values ...string) (out []any, err error) {
	t.Helper()
	c, err := loader.Load(chartPath)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	given := map[string]any{}
	for _, text := range values {
		one := map[string]any{}
		if err := strict.Unmarshal([]byte(text), &one); err != nil {
			t.Fatal(err)
		}
		given = chartutil.CoalesceTables(one, given)
	}
	all, err := chartutil.ToRenderValues(c, given, chartutil.ReleaseOptions{Name: "quorate", Namespace: "quorate"},
		chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Engine{Strict: true}.Render(c, all)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, ".yaml") {
			out = append(out, documents(t, name, files[name])...)
		}
	}
	return out, nil
}

// documents decodes the documents of a rendered file, without empty ones.
func documents(t *testing.T, name, text string) (out []any) {
	t.Helper()
	docs := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	for {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(bytes.TrimSpace(doc)) > 0 {
			out = append(out, decode(t, name, doc))
		}
	}
}

func mustRender(t *testing.T, values ...string) []any {
	t.Helper()
	out, err := render(t, values...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// among returns the first object of a type.
func among[T any](t *testing.T, objects []any) *T {
	t.Helper()
	for _, o := range objects {
		if found, ok := o.(*T); ok {
			return found
		}
	}
	t.Fatalf("the chart has no %T", new(T))
	return nil
}

// sortEnv gives variables an order, so that two containers can be compared.
func sortEnv(pod *corev1.PodSpec) *corev1.PodSpec {
	for _, list := range [][]corev1.Container{pod.InitContainers, pod.Containers} {
		for _, c := range list {
			slices.SortFunc(c.Env, func(a, b corev1.EnvVar) int { return strings.Compare(a.Name, b.Name) })
		}
	}
	return pod
}

func same(t *testing.T, what string, rendered, static any) {
	t.Helper()
	if !equality.Semantic.DeepEqual(rendered, static) {
		a, _ := strict.Marshal(rendered)
		b, _ := strict.Marshal(static)
		t.Errorf("%s of the chart and of the manifest differ:\n%s\n---\n%s", what, a, b)
	}
}

// With its default values the chart renders the same objects as the static manifests, which other tests check.
func TestChart_DefaultsAreTheManifests(t *testing.T) {
	objects := mustRender(t, "apps: [{id: orders, image: 'registry.example/orders:1.0.0', port: 8080, replicas: 2}]")
	set, staticSet := among[appsv1.StatefulSet](t, objects), find[appsv1.StatefulSet](t)
	sortEnv(&set.Spec.Template.Spec)
	sortEnv(&staticSet.Spec.Template.Spec)
	same(t, "the servers", set, staticSet)
	app, staticApp := among[appsv1.Deployment](t, objects), find[appsv1.Deployment](t)
	for _, d := range []*appsv1.Deployment{app, staticApp} {
		sortEnv(&d.Spec.Template.Spec)
		d.Spec.Template.Spec.Volumes = slices.Clone(d.Spec.Template.Spec.Volumes)
	}
	same(t, "the application", app, staticApp)
	same(t, "the service", among[corev1.Service](t, objects), find[corev1.Service](t))
	same(t, "the budget", among[policyv1.PodDisruptionBudget](t, objects), find[policyv1.PodDisruptionBudget](t))
	same(t, "the components", among[corev1.ConfigMap](t, objects), find[corev1.ConfigMap](t))
	if len(objects) != 6 {
		t.Errorf("%d objects", len(objects))
	}
}

func TestChart_SingleNodeValuesFitOneMachine(t *testing.T) {
	text := readFile(t, chartPath+"/values-single-node.yaml")
	set := among[appsv1.StatefulSet](t, mustRender(t, text))
	pod := set.Spec.Template.Spec
	if pod.Affinity != nil || *set.Spec.Replicas != 3 {
		t.Errorf("affinity %v, %d replicas: three servers do not fit on one machine", pod.Affinity, *set.Spec.Replicas)
	}
	requests := pod.Containers[0].Resources.Requests
	if cpu, memory := requests.Cpu().MilliValue(), requests.Memory().Value(); cpu > 100 || memory > 256<<20 {
		t.Errorf("a server requests %d m and %d bytes", cpu, memory)
	}
	if pod.Containers[0].ImagePullPolicy != corev1.PullIfNotPresent {
		t.Errorf("a loaded image is not used: %s", pod.Containers[0].ImagePullPolicy)
	}
	standard := among[appsv1.StatefulSet](t, mustRender(t))
	if !equality.Semantic.DeepEqual(pod.Containers[0].Env, standard.Spec.Template.Spec.Containers[0].Env) {
		t.Error("the settings differ from those of the default values")
	}
}

func TestChart_PreferredAntiAffinity(t *testing.T) {
	pod := among[appsv1.StatefulSet](t, mustRender(t, "servers: {antiAffinity: preferred}")).Spec.Template.Spec
	if a := pod.Affinity.PodAntiAffinity; len(a.RequiredDuringSchedulingIgnoredDuringExecution) != 0 ||
		len(a.PreferredDuringSchedulingIgnoredDuringExecution) != 1 {
		t.Errorf("%+v", a)
	}
}

func TestChart_SettingsFileIsMounted(t *testing.T) {
	objects := mustRender(t, `
servers:
  replicas: 5
  settings: {backup: {directory: /backups, every: 6h}}
  extraVolumes: [{name: backups, persistentVolumeClaim: {claimName: backups}}]
  extraVolumeMounts: [{name: backups, mountPath: /backups}]
`)
	set := among[appsv1.StatefulSet](t, objects)
	c := set.Spec.Template.Spec.Containers[0]
	if value(c, "QUORATE_CONFIG_FILE") != "/etc/quorate/settings/quorate.yaml" ||
		value(c, "QUORATE_BOOTSTRAP_EXPECT") != "5" || set.Spec.Template.Annotations["quorate.dev/settings"] == "" {
		t.Errorf("%+v", c.Env)
	}
	for _, m := range c.VolumeMounts {
		if m.Name != "data" && !slices.ContainsFunc(set.Spec.Template.Spec.Volumes,
			func(v corev1.Volume) bool { return v.Name == m.Name }) {
			t.Errorf("no volume %s", m.Name)
		}
	}
	found := false
	for _, o := range objects {
		if m, ok := o.(*corev1.ConfigMap); ok && m.Name == "quorate-settings" {
			found = strings.Contains(m.Data["quorate.yaml"], "directory: /backups")
		}
	}
	if !found {
		t.Error("there is no settings file")
	}
}

func TestChart_WrongValuesAreRefused(t *testing.T) {
	for values, want := range map[string]string{
		"servers: {antiAffinity: never}":            "antiAffinity",
		"servers: {replica: 3}":                     "replica",
		"servers: {replicas: 0}":                    "replicas",
		"apps: [{id: Orders, image: a, port: 1}]":   "id",
		"apps: [{id: orders, image: a}]":            "port",
		"apps: [{id: orders, image: a, port: x}]":   "port",
		"image: {repository: '', tag: v1}":          "repository",
		"image: {repository: x, pullPolicy: Maybe}": "pullPolicy",
	} {
		if _, err := render(t, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", values, err)
		}
	}
}
