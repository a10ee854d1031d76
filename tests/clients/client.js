// client.js PROTO_DIRECTORY CSI_SOCKET REGISTRATION_SOCKET SNAPSHOT_ID: one call of each kind; a line for each result.
'use strict';
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const [directory, socket, registrationSocket, snapshot] = process.argv.slice(2);
const load = (file) => grpc.loadPackageDefinition(loader.loadSync(`${directory}/${file}`, { keepCase: true, longs: Number }));
const { v1: csi } = load('csi.proto').csi;
const { pluginregistration } = load('pluginregistration.proto');

const connect = (Service, path) => new Service(`unix://${path}`, grpc.credentials.createInsecure());
const limit = () => ({ deadline: Date.now() + 30000 });
const call = (client, method, request) => new Promise((resolve, reject) => {
  client[method](request, limit(), (error, response) => (error ? reject(error) : resolve(response)));
});

async function main() {
  const [identity, controller] = [connect(csi.Identity, socket), connect(csi.Controller, socket)];
  const [node, metadata] = [connect(csi.Node, socket), connect(csi.SnapshotMetadata, socket)];
  console.log('GetPluginInfo', (await call(identity, 'GetPluginInfo', {})).name);
  console.log('GetPluginCapabilities', (await call(identity, 'GetPluginCapabilities', {})).capabilities.length);
  console.log('Probe', (await call(identity, 'Probe', {})).ready.value);
  const { volume } = await call(controller, 'CreateVolume', {
    name: 'client',
    capacity_range: { required_bytes: 64 << 20 },
    volume_capabilities: [{ block: {}, access_mode: { mode: 'SINGLE_NODE_WRITER' } }],
    parameters: { backend: 'fake' },
  });
  console.log('CreateVolume', volume.capacity_bytes);
  console.log('ListVolumes', (await call(controller, 'ListVolumes', {})).entries.length);
  await call(controller, 'DeleteVolume', { volume_id: volume.volume_id });
  console.log('DeleteVolume');
  console.log('NodeGetInfo', (await call(node, 'NodeGetInfo', {})).node_id);
  let blocks = 0;
  for await (const message of metadata.GetMetadataAllocated({ snapshot_id: snapshot, max_results: 1 }, limit())) {
    blocks += message.block_metadata.length;
  }
  console.log('GetMetadataAllocated', blocks);
  await call(controller, 'DeleteVolume', {}).catch((error) => console.log('DeleteVolume', error.code, error.details));
  const registration = connect(pluginregistration.Registration, registrationSocket);
  const info = await call(registration, 'GetInfo', {});
  console.log('GetInfo', info.type, info.name);
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
