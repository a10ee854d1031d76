package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	pluginregistration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/csi"
	"k8s.io/kubernetes/pkg/volume/util"
	"k8s.io/kubernetes/pkg/volume/util/hostutil"
	"k8s.io/mount-utils"
)

// The storage half of a kubelet: its own plugin watcher, which drivers register with, and its own CSI code, which stages,
// publishes and grows what pods of its node ask for. No containers: a pod whose volumes are there is running.
type kubelet struct {
	// What nobody asks for in this half is nil.
	volume.VolumeHost
	volume.KubeletVolumeHost
	node    string
	directory  string
	client  kubernetes.Interface
	factory informers.SharedInformerFactory
	drivers cache.SharedIndexInformer
	plugin  volume.VolumePlugin
	// By the pod's uid.
	running map[types.UID][]mounted
}

type mounted struct {
	spec   *volume.Spec
	device string
	path   string
}

func (k *kubelet) GetPluginDir(name string) string { return filepath.Join(k.directory, "plugins", name) }
func (k *kubelet) GetPodsDir() string              { return filepath.Join(k.directory, "pods") }
func (k *kubelet) GetPodVolumeDir(pod types.UID, plugin, name string) string {
	return filepath.Join(k.directory, "pods", string(pod), "volumes", plugin, name)
}
func (k *kubelet) GetKubeClient() kubernetes.Interface                 { return k.client }
func (k *kubelet) GetMounter() mount.Interface                         { return mount.New("") }
func (k *kubelet) GetHostUtil() hostutil.HostUtils                     { return hostutil.NewHostUtil() }
func (k *kubelet) GetNodeName() types.NodeName                         { return types.NodeName(k.node) }
func (k *kubelet) GetEventRecorder() record.EventRecorder              { return &record.FakeRecorder{} }
func (k *kubelet) GetInformerFactory() informers.SharedInformerFactory { return k.factory }
func (k *kubelet) CSIDriversSynced() cache.InformerSynced              { return k.drivers.HasSynced }
func (k *kubelet) CSIDriverLister() storagelisters.CSIDriverLister {
	return k.factory.Storage().V1().CSIDrivers().Lister()
}
func (k *kubelet) SetKubeletError(err error) {
	if err != nil {
		klog.ErrorS(err, "not ready")
	}
}
func (k *kubelet) WaitForCacheSync() error {
	if !cache.WaitForCacheSync(context.Background().Done(), k.drivers.HasSynced) {
		return fmt.Errorf("CSIDrivers are not known")
	}
	return nil
}
func (k *kubelet) GetServiceAccountTokenFunc() func(string, string, *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	return func(string, string, *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
		return nil, fmt.Errorf("no tokens here")
	}
}

// kubelet NODE DIRECTORY KUBECONFIG
func runKubelet(arguments []string) error {
	kubeconfig, err := clientcmd.BuildConfigFromFlags("", arguments[2])
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(kubeconfig)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	k := &kubelet{node: arguments[0], directory: arguments[1], client: client, factory: factory,
		drivers: factory.Storage().V1().CSIDrivers().Informer(), running: map[types.UID][]mounted{}}
	ctx := context.Background()
	factory.Start(ctx.Done())
	k.plugin = csi.ProbeVolumePlugins()[0]
	if err := k.plugin.Init(k); err != nil {
		return err
	}
	manager := pluginmanager.NewPluginManager(filepath.Join(k.directory, "plugins_registry"), k.GetEventRecorder())
	manager.AddHandler(pluginregistration.CSIPlugin, csi.PluginHandler)
	ready := config.NewSourcesReady(func(sets.Set[string]) bool { return true })
	go manager.Run(ctx, ready, ctx.Done())
	for ; ; time.Sleep(300 * time.Millisecond) {
		pods, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + k.node})
		if err != nil {
			klog.ErrorS(err, "list pods")
			continue
		}
		for _, pod := range pods.Items {
			if err := k.sync(ctx, &pod); err != nil {
				klog.ErrorS(err, "pod", "name", pod.Name)
			}
		}
	}
}

func (k *kubelet) sync(ctx context.Context, pod *v1.Pod) error {
	if pod.DeletionTimestamp != nil {
		return k.stop(ctx, pod)
	}
	if pod.Status.Phase == v1.PodRunning {
		return k.grow(ctx, pod)
	}
	for _, wanted := range pod.Spec.Volumes {
		if wanted.PersistentVolumeClaim == nil {
			continue
		}
		claim, err := k.client.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, wanted.PersistentVolumeClaim.ClaimName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		found, err := k.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := k.mount(pod, volume.NewSpecFromPersistentVolume(found, false)); err != nil {
			return err
		}
	}
	_, err := k.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType,
		[]byte(`{"status": {"phase": "Running"}}`), metav1.PatchOptions{}, "status")
	return err
}

func (k *kubelet) mount(pod *v1.Pod, spec *volume.Spec) error {
	for _, there := range k.running[pod.UID] {
		if there.spec.Name() == spec.Name() {
			return nil
		}
	}
	devices, err := k.plugin.(volume.DeviceMountableVolumePlugin).NewDeviceMounter()
	if err != nil {
		return err
	}
	device, err := devices.GetDeviceMountPath(spec)
	if err != nil {
		return err
	}
	if err := devices.MountDevice(spec, "", device, volume.DeviceMounterArgs{}); err != nil {
		return err
	}
	mounter, err := k.plugin.NewMounter(spec, pod)
	if err != nil {
		return err
	}
	if err := mounter.SetUp(volume.MounterArgs{}); err != nil {
		return err
	}
	k.running[pod.UID] = append(k.running[pod.UID], mounted{spec, device, mounter.GetPath()})
	return nil
}

// The second half of an expansion, for claims that the resizer has handed over.
func (k *kubelet) grow(ctx context.Context, pod *v1.Pod) error {
	for _, there := range k.running[pod.UID] {
		name := there.spec.PersistentVolume.Spec.ClaimRef.Name
		claim, err := k.client.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if claim.Status.AllocatedResourceStatuses[v1.ResourceStorage] != v1.PersistentVolumeClaimNodeResizePending {
			continue
		}
		size := claim.Spec.Resources.Requests[v1.ResourceStorage]
		options := volume.NodeResizeOptions{VolumeSpec: there.spec, DeviceMountPath: there.path, DeviceStagePath: there.device,
			NewSize: size, OldSize: claim.Status.Capacity[v1.ResourceStorage]}
		if _, err := k.plugin.(volume.NodeExpandableVolumePlugin).NodeExpand(options); err != nil {
			return err
		}
		if _, err := util.MarkNodeExpansionFinishedWithRecovery(claim, size, k.client); err != nil {
			return err
		}
	}
	return nil
}

func (k *kubelet) stop(ctx context.Context, pod *v1.Pod) error {
	for _, there := range k.running[pod.UID] {
		unmounter, err := k.plugin.NewUnmounter(there.spec.Name(), pod.UID)
		if err != nil {
			return err
		}
		if err := unmounter.TearDown(); err != nil {
			return err
		}
		devices, err := k.plugin.(volume.DeviceMountableVolumePlugin).NewDeviceUnmounter()
		if err != nil {
			return err
		}
		if err := devices.UnmountDevice(there.device); err != nil {
			return err
		}
	}
	delete(k.running, pod.UID)
	return k.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, *metav1.NewDeleteOptions(0))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
